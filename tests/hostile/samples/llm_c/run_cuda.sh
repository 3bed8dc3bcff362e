mpirun -np 4 ./train_gpt2cu -i data/ours.bin -b 16 -t 512 -d 131072 -r 0 -z 1 -e d12 -x 100
