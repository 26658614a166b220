"""What the help of the verbs shows below their descriptions."""

EXIT_CODES = """exit codes: 0 done, 1 a run or notebook failed, or ucl status found missing runs (finished results are
kept), 2 wrong input, 130 interrupted, 143 ended by SIGTERM, for example because a job was cancelled"""

SPLIT = """Without test images, every fifth image of a class becomes a test image. If several images are of one patient,
give each patient a folder: <class>/<patient>/<image>. All images of a patient are then in one split, and about a fifth
of the patients are test patients. Folders with the same name are one patient, also in several classes; one in both
train/ and test/ is refused. In an .npz, the arrays train_patients, test_patients and val_patients name patients,
and the array classes names the classes."""

WHERE = """conditions:
  Pairs NAME=VALUE, or a query in the language of pandas' DataFrame.query: dataset=bloodcell  settings= (only defaults)
  'seed < 5'  "score in ['BI', 'EN']"  'memory_size == 40 or memory_size.isna()'. Names are the fields of ucl run, label
  (the name of a method in tables, such as ER or BI bottom), settings (what differs from the defaults), fingerprint (of
  the images), source (of your own objects), arithmetic, device, processor (the GPU, or the CPU of a run without one),
  threads and date."""

TIMES = """times, in seconds:
  seconds              the whole run
  seconds_per_batch    training and memory update, per batch of the stream; without tests"""

OTHER_DATA = """A name with -lt at the end is the long-tailed version. Instead of a name you can give a path to an .npz
in MedMNIST's layout or to a folder of class folders, or your own function as package.module:function."""

EXAMPLES = {
    "run": """examples:
  ucl run                                              the paper's method on digits, in half a minute
  ucl run --dataset bloodcell --memory-size 160        BloodCell, Bregman Information, bottom-k
  ucl run --dataset cifar10 --population reservoir     experience replay (ER)
  ucl run --dataset cifar10 --population class-balanced  class-balancing reservoir sampling (CBR)
  ucl run --dataset path/to/folder --score mine:score  your images, your score
  ucl run --population mine:Fifo --model mine:small    your memory policy and network, from mine.py in this folder
  ucl run --config runs/some-record.json --seed 7      the run of a record, with another seed""",
    "sweep": """examples:
  ucl sweep bloodcell --seeds 0 1 2                    the BloodCell columns of Table 3, 60 runs, one after another
  ucl sweep table1 table2 --jobs 4                     four processes that share the cores, or the GPU
  ucl sweep --config grid.yaml                         all combinations of your own values, for example
      dataset: path/to/folder
      score: [BI, "mine:score"]
      refresh: [1, 2]
      seed: [0, 1, 2]
  ucl sweep table3 --set refresh 2                     fewer scores per batch; for fields that the table does not decide
  ucl status table1                                    runs measured, runs missing and their estimated time

several runs on one GPU, which compute at the same time only with NVIDIA's MPS:
  nvidia-cuda-mps-control -d                           once; ends with: echo quit | nvidia-cuda-mps-control
  ucl sweep table1 --jobs auto

a SLURM job array: each job runs a twentieth of the table, all records go into one shared folder:
  ucl data check cifar10 --data /shared/data           once, so that the jobs need no download
  sbatch --array=1-20 --cpus-per-task=4 --time=04:00:00 --wrap 'ucl sweep table1 \\
      --shard $SLURM_ARRAY_TASK_ID/20 --threads 4 --store /shared/runs --data /shared/data'
  To continue a job that was stopped, submit it again with the same line. In a Kubernetes indexed job, which counts
  from 0: --shard $((JOB_COMPLETION_INDEX + 1))/20

dask workers, or another executor of concurrent.futures, from Python: ucl.sweep(configs, "/shared/runs", executor)

Without a terminal, for example in the log of a job, one line per finished run reports its result and the time left.""",
    "status": """examples:
  ucl status table1 --store figures/runs
  ucl status table3 --shard 2/20 --store /shared/runs  the runs of one job of an array""",
    "results": """examples:
  ucl results                                          the store runs
  ucl results --store figures/runs --where dataset=bloodcell settings= --measure A F learning seconds
  ucl results --by lr --where score=BI                 a column of learning rates, sorted by them
  ucl results --by seed                                each run
  ucl results --measure balanced balanced_F worst_class if the classes differ in size
  ucl results --output table.csv                       all digits; .md and .tex: mean ± std""",
    "compare": """examples:
  ucl compare score=EN population=class-balanced       in the store runs
  ucl compare "label=BI bottom settings=" "label=CBR settings=" --store figures/runs --where dataset=bloodcell
  ucl compare "score=BI refresh=1" "score=BI refresh=2" --measure A F learning
  ucl compare "label=ER memory_size=40" "label=ER memory_size=160" --output difference.csv""",
    "plot": """examples:
  ucl plot accuracy                                    the store runs, as accuracy.png
  ucl plot forgetting --store figures/runs --where dataset=bloodcell memory_size=40 settings= --output forgetting.pdf
  ucl plot confusion --where label=ER                  of runs that were measured with --predictions DIR
  ucl plot differences --against "label=CBR settings=" --where dataset=bloodcell 'not refresh > 1'""",
    "reproduce": """examples:
  ucl reproduce                                        all notebooks, pages in reproduced/index.html
  ucl reproduce tables your_own --jobs 2               two notebooks, both at the same time
  ucl reproduce tables -p compute true                 measure runs that have no record yet""",
    "benchmark": """examples:
  ucl benchmark                                        all methods of the paper, on noise
  ucl benchmark --methods ER BI 'BI refresh=2' 'BI scoring_batchnorm=train' --memory-sizes 500
  ucl benchmark --dataset cifar10-lt --memory-sizes 200 --methods BI 'BI refresh=2' --jobs 1 16
                                                       also whole runs, 1 and 16 at a time: runs per hour""",
}
"""Examples by the name of the verb."""
