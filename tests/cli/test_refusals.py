"""What commands refuse for their words alone, in one table: exit code 2, one message, nothing written."""

import pytest

from tests.support.documents import ROOT

FIT, FLAG = "fit {zarr} --out {out}", "--target flag --columns a,b"
ROTATED = '{{"kernel":"gaussian","metric":[[1,2],[3,4]]}}'
DENSE = "--n-components goes with --features auto, fourier, equispaced or nystroem"
ANY_KERNEL = "goes with --features fourier, equispaced, binning or nystroem"
ITERATIVE = "goes with --model regressor, svc or likelihood, or --solver cg or sgd, or --features binning"
PAIR, AXIS = "is not COLUMN=LOW:HIGH", "--grid must be COLUMN=START:STOP:N"
RASTER = "raster {model} --out {out} --grid"

REFUSALS = [
    # Options that the chosen class lacks, or would not use.
    ("plan {zarr} --features binning --n-components 64", DENSE),
    ("plan {zarr} --features linear --n-components 64", DENSE),
    ("plan {zarr} --features linear --length-scale 2", f"--length-scale {ANY_KERNEL}"),
    ("plan {zarr} --features auto --kernel gaussian", f"--kernel {ANY_KERNEL}"),
    ("plan {zarr} --features auto --sampling qmc", "--sampling goes with --features fourier"),
    ("plan {zarr} --n-bins 64", "--n-bins goes with --features binning"),
    ("plan {zarr} --landmarks leverage", "--landmarks goes with --features nystroem"),
    ("plan {zarr} --features nystroem --form phase", "--form goes with --features fourier"),
    ("plan {zarr} --features fourier --bounds lat=0:1", "--bounds goes with --features equispaced"),
    ("plan {zarr} --metric learned --features linear", f"--metric {ANY_KERNEL}"),
    ("plan {zarr} --metric learned --length-scale ard", "a metric goes with one width"),
    ("plan {zarr} --metric learned --length-scale 1,2", "a metric goes with one width"),
    (f"plan {{zarr}} --metric learned --kernel {ROTATED}", "--metric goes with a kernel's name"),
    ('plan {zarr} --length-scale 2 --kernel {{"kernel":"cauchy"}}', "goes with a kernel's name"),
    ("plan {zarr} --nu 2", "--nu goes with --kernel matern"),
    ("plan {zarr} --features fourier --tol 1e-6", f"--tol {ITERATIVE}"),
    ("plan {zarr} --alpha 1 --solver gram --max-sweeps 3", f"--max-sweeps {ITERATIVE}"),
    ("plan {zarr} --alpha 1 --alphas 1,2", "--alphas goes with --alpha cv or --alpha gcv"),
    ("plan {zarr} --model svc --C 2 --Cs 1,2", "--Cs goes with --C cv"),
    ("plan {zarr} --alpha gcv --cv 3", "--cv goes with --alpha cv or --C cv"),
    ("plan {zarr} --class-weight balanced", "--class-weight goes with --model ridge-classifier, svc or"),
    ("plan {zarr} --loss hinge", "--loss goes with --model svc"),
    ("plan {zarr} --model pca --alpha 1", "--alpha goes with --model ridge or ridge-classifier"),
    ("plan {zarr} --model pca --solver cg", "--solver goes with --model ridge, ridge-classifier, svc"),
    ("plan {zarr} --model regressor --loss hinge", "--loss must be one of"),
    ("plan {zarr} --model regressor --loss huber --quantile .9", "--quantile goes with --loss quantile"),
    ("plan {zarr} --model regressor --delta 2", "--delta goes with --loss huber"),
    ("plan {zarr} --model regressor --epsilon 1 --loss poisson", "--epsilon goes with --loss epsilon_insens"),
    ("plan {zarr} --model regressor --quantile .9,.1", "--quantile must be in ascending order"),
    ("plan {zarr} --model regressor --quantile 2", "--quantile must be a number between 0 and 1"),
    ("plan {zarr} --model regressor --exposure a", "--exposure goes with --loss poisson or gamma"),
    ("plan {zarr} --exposure a", "--exposure goes with --model regressor and --loss poisson or gamma"),
    ("plan {zarr} --n-outputs 3", "--n-outputs goes with --model pca"),
    (f"{FIT} --include-std --model svc", "--include-std goes with the Gram of --model ridge"),
    (f"{FIT} --include-std --solver cg --alpha 1", "--include-std goes with the Gram of --model ridge"),
    (f"{FIT} --include-std --features binning", "--include-std goes with the Gram of --model ridge"),
    # Folds without what their rule needs, or with what it does not use.
    ("plan {zarr} --gap 7d", "--gap goes with --folds forward"),
    ("gram {zarr} --out {out} --folds contiguous --by a", "--by goes with --folds groups or forward"),
    ("plan {zarr} --folds forward --block-size 2", "--block-size goes with --folds blocks"),
    ("plan {zarr} --folds groups", "--folds groups needs the column of the groups"),
    ("plan {zarr} --folds groups --by a,b", "--folds groups goes by one column"),
    ("gram {zarr} --out {out} --folds blocks", "--folds blocks needs --block-columns"),
    ("plan {zarr} --folds hash --fold-by hash", "--fold-by goes with a number of folds"),
    ("plan {zarr} --folds hash --cv 1", "--cv must be an integer of at least 2, got 1"),
    ("plan {zarr} --folds forward --cv two", "--cv must be a positive integer, got 'two'"),
    ("plan {zarr} --folds blocks --block-columns a --buffer -1", "--buffer must be a number of at least 0"),
    ("plan {zarr} --folds blocks --block-columns d", "folds go by the column 'd', which these rows lack"),
    ("plan {parquet} --target y --groups flag --folds hash", "but the folds hold out rows at random"),
    ("plan {zarr} --folds blocks --block-columns 7", "folds go by the column '7', which these rows lack"),
    ("plan {zarr} --model pca --folds hash", "--folds goes with --model ridge"),
    ("plan {zarr} --alpha gcv --folds hash", "--folds goes with --alpha cv or --C cv"),
    ("plan {zarr} --alpha 1 --features linear --folds hash", "--folds goes with --alpha cv or --C cv"),
    # Values that no data could make right.
    ("plan {zarr} --n-components 0", "--n-components must be a positive integer, got 0"),
    ("plan {zarr} --features fourier --n-components 1.5", "--n-components must be a positive integer"),
    ("plan {zarr} --model pca --features binning", "use --features fourier or --features nystroem"),
    ("plan {zarr} --alpha 0", "--alpha must be positive"),
    ("plan {zarr} --alpha=-1", "--alpha must be positive"),
    ("plan {zarr} --alpha much", "--alpha must be one of 'cv', 'gcv', got 'much'"),
    ("plan {zarr} --alphas nan", "--alphas must be positive"),
    ("plan {zarr} --cv 1", "--cv must be an integer of at least 2"),
    ("plan {zarr} --cv two", "--cv must be an integer of at least 2"),
    ("plan {zarr} --length-scale 0", "--length-scale must be positive"),
    ("plan {zarr} --length-scale wide", "--length-scale must be a positive number"),
    ("plan {zarr} --kernel matern --nu 0.1", "--nu must be"),
    ("plan {zarr} --kernel matern --nu auto --features fourier", "--nu auto is chosen by"),
    ("plan {zarr} --kernel laplacian --sampling orthogonal", "use --sampling iid"),
    ('plan {zarr} --kernel {{"kernel":"gaussian","metric":[[1],[2,3]]}}', "metric must be a matrix"),
    ('plan {zarr} --kernel {{"kernel":"rbf"}}', '"kernel" must be one of'),
    ("plan {zarr} --kernel rbf", "'rbf' is none of gaussian, laplacian"),
    ("plan {zarr} --kernel {{kernel", "cannot be read as JSON"),
    ("plan {zarr} --kernel absent.json", "absent.json"),
    ("plan {zarr} --model svc --class-weight [1]", "'[1]' is none of balanced, JSON, or a .json file"),
    ("plan {zarr} --sampling fast", "'fast' is not one of 'iid', 'orthogonal'"),
    ("plan {zarr} --random-state=-1", "--random-state"),
    ("quickstart --dir {tmp}/q --workers 0", "--workers"),
    ("plan {zarr} --model pca --n-components 16 --length-scale 2 --n-outputs 17", "the map has 16 features"),
    ("plan {zarr} --features equispaced --bounds lat=1", PAIR),
    ("plan {zarr} --features equispaced --bounds lat=a:b", PAIR),
    ("plan {zarr} --features equispaced --period 24", "is not COLUMN=NUMBER"),
    ("plan {zarr} --features equispaced --bounds lat=3:-3", "least and its largest"),
    ("plan {zarr} --bounds a=-3:3 --bounds a=-4:4", "--bounds has two values for a column"),
    ("plan {zarr} --period lat=-1", "the period of column 'lat' must be a positive number, got -1.0"),
    ("plan {zarr} --kernel-tol 2", "must be between 0 and 1, got 2.0"),
    ("plan {zarr} --features equispaced --alpha gcv", "--alpha cv"),
    ("plan {zarr} --storage-option =true", "is not of the form key=value"),
    ("plan {zarr} --storage-option secret", "a text without '=' is not of the form key=value"),
    # Places, schedulers and rows.
    ("fit {tmp}/nothing.zarr --out {out}", "does not exist"),
    ("fit {tmp}/nothing.parquet --target y --out {out}", "does not exist"),
    ("fit {parquet} --out {out}", "name it with --target; its columns are a, b, c, y, label, flag"),
    ("fit {parquet} --target z --out {out}", "has no column 'z'"),
    ("fit {parquet} --target y --columns a,b,c --bounds z=0:1 --out {out}", "'z'"),
    ("plan {parquet} --target y --columns a,b,c,flag --features equispaced", "1 to 3 columns, got 4"),
    ("fit {parquet} --target label --out {out}", "use --model ridge-classifier"),
    (f"{FIT} --scheduler tcp://somewhere", "is not an address"),
    (f"{FIT} --scheduler file.json", "there is no scheduler file"),
    (f"{FIT} --checkpoint-every 3", "--checkpoint-every goes with --checkpoint"),
    ("fit {zarr} --out {tmp}/no/m.zarr", "does not exist; create it first"),
    ("fit {zarr} --out {zarr} --overwrite", "overlap; choose another path"),
    ("fit {tmp}/nothing.zarr --out {tmp}/m.parquet", "a Zarr group is written there; name one that ends"),
    ("merge {model} --out {tmp}/m.csv", "m.csv has the name of another kind of file"),
    ("predict {model} {zarr} --out {tmp}/p.tsv", "results are Zarr, Parquet or CSV"),
    ("fit {tmp}/nothing.zarr --out {out} --workers 0", "'--workers': 0 is not in the range x>=1"),
    (f"{FIT} --report {{tmp}}/none/page.html", "none does not exist; create it first"),
    (f"{FIT} --report {{out}}/page.html", "overlap; choose another path"),
    (f"{FIT} --report {{zarr}}/page.html", "and the data"),
    (f"{FIT} --report s3://bucket/page.html", "is not a local path"),
    ("score {model} {zarr} --workers 2 --scheduler tcp://127.0.0.1:1", "go with --scheduler local"),
    # Plans for Kubernetes, rates, errors of kernels.
    ("plan {zarr} --as-helm-values --json", "prints YAML; give it or --json"),
    ("plan {zarr} --as-helm-values --scheduler tcp://127.0.0.1:1", "leave out --scheduler"),
    ("plan {zarr} --as-helm-values --memory-limit lots --length-scale 2", "--memory-limit must be a size"),
    ("plan {zarr} --as-helm-values --threads-per-worker 0", "--threads-per-worker"),
    ("plan {zarr} --threads-per-worker 2", "--threads-per-worker goes with --as-helm-values"),
    ("bench --target y", "--target goes with DATA"),
    ("kernel-error {zarr} --features linear", "approximates no kernel"),
    ("kernel-error {zarr} --n-components 0 --length-scale 1", "--n-components must be"),
    ("kernel-error {zarr} --nu 2.5", "--nu goes with --kernel matern"),
    ("kernel-error {zarr} --model ridge", "No such option"),
    ("kernel-error {zarr} --length-scale 2 --n-pairs 1", "--n-pairs must be"),
    ("kernel-error {zarr} --length-scale 2 --confidence 95", "confidence must be"),
    # Models and their rows.
    ("score {tmp}/none.zarr {zarr}", "does not exist"),
    ("score {zarr} {zarr}", "not a group of distrff"),
    ("score {labels} {parquet}", "name it with --target"),
    ("score {model} {parquet} --columns a,b,c --target label", "y must hold numbers"),
    ("importance {labels} {parquet}", "name it with --target"),
    ("importance {model} {zarr} --max-rows 1", "--max-rows"),
    ("predict {model} {zarr} --out {out} --return-std", "--include-std"),
    ("predict {model} {zarr} --out {out} --coverage 0.9", "distrff calibrate"),
    ("predict {model} {zarr} --out {out} --id who", "has no array 'who'"),
    ("predict {labels} {parquet} --out {out} --method predict_proba", "no probabilities"),
    ("predict {model} {parquet} --out {out}", "has 5 columns, but the model was fitted to 3"),
    ("predict {model} {zarr} --out {zarr}/X --overwrite", "overlap"),
    (f"{RASTER} lat=0:1", AXIS),
    (f"{RASTER} lat=0:1:0", AXIS),
    (f"{RASTER} lat=0:nan:3", AXIS),
    (f"{RASTER} 0:1:3", AXIS),
    (f"{RASTER} 0=0:1:3 --grid 0=0:1:3", "two axes of column '0'"),
    ("raster {model} --out {out}", "--grid"),
    # The quickstart's folder.
    ("quickstart --dir {tmp}/q --n-components 0", "--n-components must"),
    ("quickstart --dir {tmp}/q --n-rows 5", "--n-rows"),
    ("quickstart --dir {tmp}/q --n-columns 0", "--n-columns"),
    ("quickstart --dir {tmp}/q --memory-limit much", "--memory-limit"),
    ("quickstart --dir {tmp}/no/such/parent", "does not exist"),
    # A file of options.
    ("plan {zarr} --config {tmp}/none.toml", "does not exist"),
    (f"plan {{zarr}} --config {ROOT}/README.md", "cannot be read as TOML"),
]


@pytest.mark.parametrize(("words", "said"), REFUSALS, ids=[words for words, _ in REFUSALS])
def test_a_command_that_is_refused(distrff, rows, models, tmp_path, words, said):
    places = {"zarr": rows.zarr, "parquet": rows.parquet, "tmp": tmp_path, "out": tmp_path / "out.zarr"}
    places |= {"model": models["numbers"], "labels": models["labels"]}
    message = distrff.refused(*[word.format(**places) for word in words.split(" ")])
    assert said in " ".join(message.split())
    assert "Traceback" not in message
    *others, line = message.splitlines()
    assert line.startswith("distrff: ") or others[0].startswith("Usage: ")
    assert not list(tmp_path.iterdir())
