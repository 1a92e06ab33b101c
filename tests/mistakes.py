"""Inputs that are wrong, one by one, and what the command line says of them.

`INPUTS` is a table of (command line, what is told). A name in braces stands for
the path of what `broken` makes by that name, or of nothing if it makes none.
Words before the command are environment variables; WITHOUT=PACKAGE is a machine
that lacks it. Flags that are wrong by themselves are in `flags_test`, scripts
of launch/ in `launch_test`, `serving_test` and others.
"""

# What a run in `run` was trained with.
_AS_THERE = (
    "--dataset=digits --encoder=resnet10 --width=0.125 --stem=cifar"
    " --image_size=8 --extra_channels=0 --projection_output=16"
    " --batch_size=100 --precision=float32"
)

INPUTS = [
    # ---- Names of data ------------------------------------------------------
    (
        "pretrain --workdir={new} --dataset=cifar_10",
        "unknown dataset 'cifar_10': did you mean 'cifar10'? known: digits,",
    ),
    (
        "pretrain --workdir={new} --dataset=cifar10 --data_dir={empty}",
        "dataset cifar10 is not found in {empty}: prepare it, on a machine"
        " with a network, by python -c",
    ),
    (
        "pretrain --workdir={new} --dataset=mnist --data_dir={file}",
        "dataset mnist is not found in {file}: prepare it",
    ),
    (
        "datasets --show=mnist --data_dir={damaged_tfds}",
        "dataset mnist in {damaged_tfds} cannot be read (",
    ),
    (
        "doctor --dataset=mnist:9.9.9 --data_dir={empty}",
        "dataset mnist:9.9.9 is not found in {empty}: prepare it",
    ),
    (
        "evaluate --workdir={run} --dataset=mnist --data_dir={empty}",
        "dataset mnist is not found in {empty}: prepare it",
    ),
    (
        "embed --workdir={run} --input=mnist --data_dir={empty} --output={new}",
        "dataset mnist is not found in {empty}: prepare it",
    ),
    (
        "datasets --show=digits/x",
        "dataset digits/x: give digits, or digits/C for C classes",
    ),
    (
        "datasets --show=imagenet100 --data_dir={empty}",
        "dataset imagenet2012 is not found in {empty}: prepare it",
    ),
    (
        "datasets --show=digit_on_image:digit=9,of=digits",
        "digits of 9 pixels do not fit into images of 8x8: give digit=",
    ),
    (
        "datasets --show=digit_on_image:unique=9999,of=digits"
        " --data_dir={empty}",
        "unique=9999 is more than the 1437 digits of train: give unique=1437",
    ),
    (
        "datasets --show=kbits --split=all",
        "unknown split of kbits 'all'",
    ),
    (
        "datasets --show=subset:fraction=0.5,of=folder:{photos}",
        "folder:{photos} train does not have one label per image: give a",
    ),
    (
        "doctor --dataset=cifar_10",
        "unknown dataset 'cifar_10': did you mean 'cifar10'? known: digits,",
    ),
    # ---- Splits -------------------------------------------------------------
    (
        "pretrain --workdir={new} --split=trian",
        "unknown split of digits 'trian': did you mean 'train'?",
    ),
    (
        "pretrain --workdir={new} --split=train[:5000]",
        "split train[:5000] asks for more than the 1437 examples there are:",
    ),
    (
        "pretrain --workdir={new} --split=train[9:9]",
        "split train[9:9] of 1437 examples holds none: give a wider slice",
    ),
    (
        "evaluate --workdir={run} --test_split=tset",
        "unknown split of digits 'tset': did you mean 'test'?",
    ),
    (
        "embed --workdir={run} --split=test[400:] --output={new}",
        "split test[400:] asks for more than the 360 examples there are:",
    ),
    (
        "datasets --show=folder:{splits} --split=val",
        "folder:{splits} has no split 'val': its folders are test, train",
    ),
    (
        "datasets --show=folder:{photos} --split=test",
        "folder:{photos} has no split 'test', only train: its images are not"
        " in folders such as {photos}/test",
    ),
    (
        "pretrain --workdir={new} --validation_fraction=0.0001",
        "a validation fraction of 0.0001 cuts 0 of the 1437 examples",
    ),
    (
        "pretrain --workdir={new} --split=train[:256]"
        " --validation_fraction=0.005 --batch_size=64",
        "--validation_fraction=0.005 cuts 1 examples, fewer than 2 for each",
    ),
    # ---- Folders ------------------------------------------------------------
    (
        "pretrain --workdir={new} --dataset=folder:{nowhere}",
        "folder:{nowhere}: there is no folder {nowhere}: give a folder of",
    ),
    (
        "pretrain --workdir={new} --dataset=folder:{file}",
        "folder:{file}: there is no folder {file}: give a folder of images",
    ),
    (
        "pretrain --workdir={new} --dataset=folder:{empty}",
        "folder:{empty}: no images under {empty}: give a folder of .jpg .jpeg",
    ),
    (
        "pretrain --workdir={new} --dataset=folder:{no_images}",
        "none of the 3 images can be read (",
    ),
    (
        "pretrain --workdir={new} --dataset=folder:{bad_images}"
        " --max_bad_images=1",
        "2 of 3 images cannot be read ({bad_images}/1.png,",
    ),
    (
        "embed --workdir={run} --input=folder:{bad_images} --split=train"
        " --max_bad_images=1 --output={new}",
        "and 1 are allowed: mend or remove them, or give --max_bad_images=2",
    ),
    (
        "pretrain --workdir={new} --dataset=folder:{one_class} --loss=supcon",
        "--loss=supcon needs labels, and folder:{one_class} has none: give a"
        " labelled dataset, or a loss without labels (ntxent, margin",
    ),
    (
        "doctor --dataset=folder:{nowhere}",
        "folder:{nowhere}: there is no folder {nowhere}: give a folder of",
    ),
    # ---- Lists of images ----------------------------------------------------
    (
        "pretrain --workdir={new} --dataset=csv:{nowhere}",
        "csv:{nowhere}: there is no file {nowhere}: give a CSV file of path,",
    ),
    (
        "pretrain --workdir={new} --dataset=csv:{empty}",
        "csv:{empty}: there is no file {empty}: give a CSV file of path,label",
    ),
    (
        "pretrain --workdir={new} --dataset=csv:{csv_empty}",
        "{csv_empty} is empty: give lines of path,label",
    ),
    (
        "pretrain --workdir={new} --dataset=csv:{binary}",
        "{binary} is no CSV file ('utf-8' codec can't decode",
    ),
    (
        "pretrain --workdir={new} --dataset=csv:{csv_mixed}",
        "{csv_mixed}: b.png has no label and others have: give every line a",
    ),
    (
        "pretrain --workdir={new} --dataset=csv:{csv_columns}",
        "none of the 2 images can be read",
    ),
    (
        "pretrain --workdir={new} --dataset=csv:{csv_missing}"
        " --max_bad_images=0",
        "1 of 2 images cannot be read (",
    ),
    (
        "pretrain --workdir={new} --dataset=csv:{csv_missing} --split=test",
        "has no split 'test', only train: put {{split}} into the path for more",
    ),
    # ---- Records ------------------------------------------------------------
    (
        "pretrain --workdir={new} --dataset=tfrecord:{nowhere}*",
        "tfrecord:{nowhere}*: no file matches {nowhere}*: give the path of",
    ),
    (
        "pretrain --workdir={new} --dataset=tfrecord:{empty}",
        "tfrecord:{empty}: no file matches {empty}: give the path of TFRecord",
    ),
    (
        "pretrain --workdir={new} --dataset=tfrecord:{file}",
        "tfrecord:{file}: a file of 1 is damaged or no TFRecord of image and",
    ),
    (
        "pretrain --workdir={new} --dataset=tfrecord:{records_cut}",
        "a file of 1 is damaged or no TFRecord of image and label (",
    ),
    (
        "pretrain --workdir={new} --dataset=tfrecord:{records_empty}",
        "no record in 1 file(s): write them again",
    ),
    (
        "pretrain --workdir={new} --dataset=tfrecord:{records_other}",
        "its records are not tf.train.Example: write them with an encoded",
    ),
    (
        "pretrain --workdir={new} --dataset=tfrecord:{records_of_text}",
        "with an encoded image; features present: label, text",
    ),
    (
        "pretrain --workdir={new} --dataset=tfrecord:{records_named}",
        "feature 'label' is no integer: write labels as int64",
    ),
    (
        "pretrain --workdir={new} --dataset=tfrecord:{records_negative}",
        "labels from -1 on: write labels from 0 on",
    ),
    (
        "datasets --show=tfrecord:{records_raw}",
        "none of the 1 images can be read (record 0): give JPEG, PNG, GIF or",
    ),
    # ---- What does not suit the data ----------------------------------------
    (
        "pretrain --workdir={new} --split=train[:100]",
        "--batch_size=256 is more than the 100 examples there are: give"
        " --batch_size=100 or less",
    ),
    (
        "pretrain --workdir={new} --stem=imagenet",
        "views of 8 pixels are too small for the imagenet stem, which takes 32"
        " and more: give --image_size=32 or more or --stem=cifar",
    ),
    (
        "doctor --stem=imagenet",
        "views of 8 pixels are too small for the imagenet stem, which takes 32",
    ),
    (
        "pretrain --workdir={new} --encoder=keras:VGG16 --image_size=8",
        "keras:VGG16 takes no images of 8 x 8 x 3: give a larger --image_size",
    ),
    (
        "pretrain --workdir={new} --extra_channels=2",
        "--extra_channels=2: digits has 0 channels of feature extra: give"
        " --extra_channels=0 or less",
    ),
    (
        "pretrain --workdir={new} --dataset=folder:{photos} --batch_size=2"
        " --sampler=class_balanced",
        "--sampler=class_balanced needs labels, one of each image",
    ),
    (
        "pretrain --workdir={new} --dataset=folder:{photos}"
        " --loss=cross_entropy",
        "--loss=cross_entropy needs labels, and folder:{photos} has none",
    ),
    (
        "pretrain --workdir={new} --dataset=multidigits:count=2"
        " --data_dir={empty} --online_knn_size=4096",
        "--online_knn_size=4096 takes one label per image, and"
        " multidigits:count=2 has several: give --online_knn_size=0",
    ),
    (
        "pretrain --workdir={new} --dataset=folder:{photos} --linear_epochs=1"
        " --test_split=train",
        "folder:{photos} train has no labels to score against, one per image",
    ),
    (
        "pretrain --workdir={new} --profile_steps=100,900",
        "--profile_steps=100,900: the run has 500 steps: give steps from 1 to",
    ),
    # ---- The folder of a run ------------------------------------------------
    (
        "pretrain --workdir={file}",
        "--workdir={file} cannot be written (",
    ),
    (
        "pretrain --workdir={file}/run",
        "--workdir={file}/run cannot be written (",
    ),
    (
        "pretrain --workdir=/proc/run",
        "give a folder in which you may create files",
    ),
    (
        "doctor --workdir={file}",
        "--workdir={file} cannot be written (",
    ),
    (
        "pretrain --workdir={run} " + _AS_THERE + " --temperature=0.2 --seed=3",
        "{run} holds another experiment (--temperature=0.2, there (not given);"
        " --seed=3, there 0): give these flags as there to resume it, or",
    ),
    (
        "doctor --workdir={run} " + _AS_THERE + " --width=0.25",
        "{run} holds another experiment (--width=0.25, there 0.125): give",
    ),
    (
        "pretrain --workdir={run_of_flags}",
        "{run_of_flags}/config.flags is not what was written there (unknown"
        " flag --loses: did you mean --loss? see --help): restore it from a"
        " copy, or move it away",
    ),
    (
        "pretrain --workdir={run_of_bytes}",
        "{run_of_bytes}/config.flags is not what was written there (",
    ),
    (
        "pretrain --workdir={run_of_metadata} " + _AS_THERE,
        "{run_of_metadata}/checkpoints/metadata.json is not what was written",
    ),
    (
        "pretrain --workdir={run_damaged} " + _AS_THERE,
        "no checkpoint in {run_damaged}/checkpoints is whole: restore one from",
    ),
    # ---- Where a run starts -------------------------------------------------
    (
        "pretrain --workdir={new} --init_from={nowhere} " + _AS_THERE,
        "{nowhere} is no folder: give the folder of a run or of an export",
    ),
    (
        "pretrain --workdir={new} --init_from={empty} " + _AS_THERE,
        "no run in {empty}: there is no config.flags; give the --workdir of a",
    ),
    (
        "pretrain --workdir={new} --init_from={run} "
        + _AS_THERE
        + " --width=0.25",
        "--init_from={run} holds another encoder: ",
    ),
    (
        "pretrain --workdir={new} --init_from={foreign} " + _AS_THERE,
        "{foreign} is a SavedModel, but no export of tf_contrastive: write",
    ),
    (
        "doctor --init_from={nowhere} " + _AS_THERE,
        "{nowhere} is no folder: give the folder of a run or of an export",
    ),
    # ---- Machines -----------------------------------------------------------
    (
        "pretrain --workdir={new} --strategy=tpu --tpu=nowhere",
        "strategy=tpu: no TPU at 'nowhere' (",
    ),
    (
        "doctor --strategy=tpu --tpu=nowhere",
        "strategy=tpu: no TPU at 'nowhere' (",
    ),
    (
        "pretrain --workdir={new} --strategy=mirrored --cross_device_ops=nccl",
        "--cross_device_ops=nccl needs GPUs, and TensorFlow sees none: give",
    ),
    (
        "pretrain --workdir={new} --strategy=multiworker",
        "strategy=multiworker: TF_CONFIG is not set and this is no step of a",
    ),
    (
        "TF_CONFIG=worker:1 pretrain --workdir={new} --strategy=multiworker",
        "TF_CONFIG is no JSON (",
    ),
    (
        "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=x"
        " pretrain --workdir={new} --strategy=multiworker",
        "SLURM: ",
    ),
    (
        "pretrain --workdir={new} --data_service=grpc://localhost:1",
        "--data_service=grpc://localhost:1: nothing answers there (",
    ),
    # ---- Flagfiles ----------------------------------------------------------
    (
        "pretrain --workdir={new} --flagfile={nowhere}",
        "--flagfile: Unable to open flagfile {nowhere} (No such file or",
    ),
    (
        "pretrain --workdir={new} --flagfile={circular}",
        "--flagfile={circular} is part of itself ({circular} in {circular}):",
    ),
    (
        "pretrain --workdir={new} --flagfile={of_nowhere}",
        "Unable to open flagfile {nowhere}, named in {of_nowhere} (No such",
    ),
    (
        "pretrain --workdir={new} --flagfile={binary}",
        "--flagfile: Unable to open flagfile {binary} (",
    ),
    (
        "pretrain --workdir={new} --flagfile={empty}",
        "--flagfile: Unable to open flagfile {empty} (Is a directory): give",
    ),
    (
        "pretrain --workdir={new} --flagfile={file}",
        "stray word",
    ),
    # ---- Evaluation ---------------------------------------------------------
    (
        "evaluate --workdir={empty}",
        "no run in {empty}: there is no config.flags; give the --workdir of a",
    ),
    (
        "evaluate --workdir={new} --watch",
        "no run in {new}: there is no config.flags; give the --workdir of a",
    ),
    (
        "evaluate --workdir={run_unsaved}",
        "no checkpoint in {run_unsaved}/checkpoints yet: the run writes the",
    ),
    (
        "evaluate --workdir={run_damaged}",
        "no checkpoint in {run_damaged}/checkpoints is whole: restore one from",
    ),
    (
        "evaluate --workdir={run_of_metadata}",
        "{run_of_metadata}/checkpoints/metadata.json is not what was written",
    ),
    (
        "evaluate --saved_model={nowhere} --dataset=digits",
        "{nowhere} is no folder: give the folder of a run or of an export",
    ),
    (
        "evaluate --saved_model={foreign} --dataset=digits",
        "{foreign} is a SavedModel, but no export of tf_contrastive: write one",
    ),
    (
        "evaluate --saved_model={export} --dataset=digits"
        " --protocols=contrastive",
        "comes without its projection head (an export has none): give the",
    ),
    (
        "evaluate --saved_model={five_channels} --dataset=digits",
        "the encoder takes 2 channels beside the colours, and digits has 0"
        " channels of feature extra: give the dataset that it was trained on",
    ),
    (
        "evaluate --saved_model={export} --dataset=digits --output_dir={file}",
        "cannot write {file}/evaluation",
    ),
    (
        "evaluate --workdir={run} --dataset=folder:{photos}"
        " --test_split=train --nountrained",
        "folder:{photos} train has no labels to score against",
    ),
    (
        "evaluate --workdir={run} --dataset=tfrecord:{uneven}/{{split}}",
        "train has 2 classes and test 3: give splits of the same classes",
    ),
    (
        "evaluate --workdir={run} --protocols=head",
        "protocol head: only a run of --loss=cross_entropy has a classifier",
    ),
    (
        "evaluate --workdir={run} --protocols=spectrum",
        "protocol spectrum: the projection is mlp, not linear",
    ),
    (
        "evaluate --workdir={run} --protocols=tsne --test_split=test[:3]",
        "protocol tsne: digits has less than 4 images",
    ),
    (
        "evaluate --workdir={run} --protocols=transfer --data_dir={empty}",
        "protocol transfer: none of its datasets is prepared in {empty}:",
    ),
    (
        "evaluate --workdir={run} --protocols=logistic --train_split=train[:1]",
        "1 training examples leave none to select on",
    ),
    (
        "evaluate --workdir={run} --protocols=robustness"
        " --robustness_baseline={nowhere}",
        "--robustness_baseline={nowhere} cannot be read (",
    ),
    (
        "evaluate --workdir={run} --protocols=robustness"
        " --robustness_baseline={json_list}",
        "--robustness_baseline={json_list} holds no object: give a JSON file",
    ),
    (
        "evaluate --workdir={run_of_no_results} --protocols=prototype",
        "{run_of_no_results}/evaluation.json is not what was written",
    ),
    (
        "evaluate --compare {empty} {run}",
        "no results of {empty} to compare: run `evaluate --workdir=RUN` first",
    ),
    (
        "evaluate --compare {scored} {binary}.npz",
        "{binary}.npz is no file of results (",
    ),
    (
        "evaluate --compare {scored} {scored_on_others}",
        "have no result in common (knn: their test examples differ): evaluate",
    ),
    (
        "evaluate --compare {scored} {scored_without_hits}",
        "no results of {scored_without_hits} to compare: run `evaluate",
    ),
    (
        "evaluate --compare {scored} {scored}:untrained",
        "no results of {scored}:untrained to compare: run `evaluate",
    ),
    # ---- Exports ------------------------------------------------------------
    (
        "export --workdir={empty}",
        "no run in {empty}: there is no config.flags; give the --workdir of a",
    ),
    (
        "export --workdir={run} --checkpoint=7",
        "--checkpoint=7: {run} has none of that step: it has those of step 0,",
    ),
    (
        "export --workdir={run_without_probe} --head=probe",
        "--head=probe: the run trained no probe along (it had --noprobe, or",
    ),
    (
        "export --workdir={run_of_photos} --head=knn",
        "--head=knn needs labels, and folder:",
    ),
    (
        "export --workdir={run_of_mnist} --head=prototype --data_dir={empty}",
        "dataset mnist is not found in {empty}: prepare it",
    ),
    (
        "export --workdir={run} --output_dir={file}",
        "cannot write to {file} (",
    ),
    (
        "WITHOUT=tf2onnx export --workdir={run} --format=savedmodel,onnx",
        "--format=onnx needs tf2onnx, which is not installed: pip install"
        " 'tf_contrastive[onnx]'",
    ),
    # ---- Embeddings ---------------------------------------------------------
    (
        "embed --workdir={empty} --output={new}",
        "no run in {empty}: there is no config.flags; give the --workdir of a",
    ),
    (
        "embed --saved_model={nowhere} --input=digits --output={new}",
        "{nowhere} is no folder: give the folder of a run or of an export",
    ),
    (
        "embed --saved_model={five_channels} --input=digits --output={new}",
        "the encoder takes 2 channels beside the colours, and digits has 0",
    ),
    (
        "embed --workdir={run} --output={empty}",
        "cannot write {empty} (it is a folder): give a file in a folder that",
    ),
    (
        "embed --workdir={run} --output={file}/x.npz",
        "cannot write {file}/x.npz (",
    ),
    (
        "embed --workdir={run} --shard_size=100 --output={shards}/d.npz",
        "{shards}/d.json is of another job (",
    ),
    (
        "embed --workdir={run} --shard_size=100 --output={damaged_shards}/d",
        "{damaged_shards}/d.json is not what was written there (",
    ),
    (
        "WITHOUT=pyarrow embed --workdir={run} --output={new}.parquet",
        "--format=parquet needs pyarrow, which is not installed: pip install",
    ),
    (
        "WITHOUT=apache_beam embed --workdir={run} --output={new}"
        " --runner=DirectRunner",
        "--runner=DirectRunner needs apache-beam, which is not installed: pip",
    ),
    # ---- Claims -------------------------------------------------------------
    (
        "reproduce --list --claims={nowhere}",
        "--claims={nowhere} cannot be read (",
    ),
    (
        "reproduce --list --claims={json_broken}",
        "--claims={json_broken} cannot be read (",
    ),
    (
        "reproduce --list --claims={json_list}",
        "--claims={json_list} cannot be read (it is no JSON object): give a",
    ),
    (
        "reproduce --claim=A --workdir={new} --claims={claim_of_no_arm}",
        "{claim_of_no_arm}: claim A: unknown arm 'x': known: a",
    ),
    (
        "reproduce --claim=A --workdir={new} --claims={claim_of_no_value}",
        "{claim_of_no_value}: claim A: unknown value",
    ),
    (
        "reproduce --claim=A --workdir={new} --claims={claim_of_no_relation}",
        "{claim_of_no_relation}: claim A: 'at_most' is missing; write it as",
    ),
    (
        "reproduce --claim=A --workdir={new} --claims={claim_of_no_item}",
        "{claim_of_no_item}: claim A: unknown item 'XX-T1'",
    ),
    (
        "reproduce --list --claims={claim_of_no_words}",
        "{claim_of_no_words}: claim A: 'claim' is missing; write it as those",
    ),
    (
        "reproduce --claim=A --workdir={new} --claims={claim_of_no_field}",
        "{claim_of_no_field}: claim A: unknown field 'colour'",
    ),
    (
        "reproduce --claim=A --workdir={new} --claims={claim} --scale=paper",
        "claim A has no recipe at --scale=paper: give --scale=cpu",
    ),
    (
        "reproduce --claim=A --workdir={file} --claims={claim}",
        "cannot write {file}",
    ),
    (
        "reproduce --claim=A --workdir={other_results} --claims={claim}",
        "{other_results}/A/result.json is of another recipe or --scale: give",
    ),
    (
        "reproduce --claim=A --workdir={no_results} --claims={claim}",
        "{no_results}/A/result.json is not what was written there (",
    ),
    (
        "reproduce --claim=A --workdir={new} --claims={claim_of_flagfile}"
        " --configs_dir={empty}",
        "--configs_dir={empty}: there is no {empty}/a.flags: give the folder",
    ),
    (
        "reproduce --claim=A --workdir={new} --claims={claim}"
        " --data_dir={nowhere}",
        "--data_dir={nowhere}: there is no such folder: give that of prepared",
    ),
    (
        "reproduce --report --workdir={empty} --report_dir={file}",
        "cannot write {file}",
    ),
    # ---- Sheets and benchmarks ----------------------------------------------
    (
        "datasets --show=digits --output={file}/sheet.png",
        "--output={file}/sheet.png cannot be written (",
    ),
    (
        "benchmark loss --output={nowhere}/b.json",
        "--output={nowhere}/b.json: there is no folder {nowhere}: create it,",
    ),
    (
        "benchmark views --sheet_size=8 --plot={nowhere}/views.png",
        "--plot={nowhere}/views.png: there is no folder {nowhere}: create it,",
    ),
    (
        "benchmark loss --output={empty}",
        "--output={empty} is a folder: give a file in it",
    ),
    (
        "benchmark serving --serving_model={nowhere}",
        "{nowhere} is no folder: give the folder of a run or of an export",
    ),
    (
        "benchmark serving --serving_model={five_channels}",
        "takes 5 channels: give an export that takes images of three",
    ),
]
