NGPU=8 CONFIG_FILE="./run.toml" ./run_train.sh
