python run_speech_recognition_seq2seq.py \
    --dataset_name="librispeech_asr" \
    --model_name_or_path="sanchit-gandhi/wav2vec2-2-bert-large" \
    --output_dir="./out" \
    --per_device_train_batch_size="4" \
    --per_device_eval_batch_size="4" \
    --gradient_accumulation_steps="2" \
    --generation_num_beams="1" \
    --do_train --do_eval
