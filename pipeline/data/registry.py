"""Every data set that a scenario can name: what it is, how many images it must have and where it comes from.

`counts` are those of the official distribution, (training, test) images per domain. Checksums of official
files are torchvision's, the owner's page's, or stated alike by several independent public sources; a file for
which none is known is fetched by hand and its digest is recorded. That is so of four: GitHub or Google pack
office_caltech10.zip and PACS.zip anew for whoever asks, no source was found for synthetic-digits.zip, and one
alone for syn_number.mat. Mirror files are described in `sources.from_mirror`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.errors import DataError, unknown

DIGITS = tuple("0123456789")
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
# EMNIST Balanced: capitals and small letters that look alike are one class.
BALANCED = DIGITS + tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ") + tuple("abdefghnqrt")
FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
# The ten of DomainNet's 345 classes that FedPCL uses (lib/data_utils.py, DomainNetDataset), in its numbering.
DOMAINNET = (
    "bird",
    "feather",
    "headphones",
    "ice_cream",
    "teapot",
    "tiger",
    "whale",
    "windmill",
    "wine_glass",
    "zebra",
)
CORRUPTIONS = (
    "brightness",
    "contrast",
    "defocus_blur",
    "elastic_transform",
    "fog",
    "frost",
    "gaussian_blur",
    "gaussian_noise",
    "glass_blur",
    "impulse_noise",
    "jpeg_compression",
    "motion_blur",
    "pixelate",
    "saturate",
    "shot_noise",
    "snow",
    "spatter",
    "speckle_noise",
    "zoom_blur",
)


@dataclass(frozen=True)
class File:
    """An official file. urls are tried in order; without any it is fetched by hand. checksum: "md5:..." or
    "sha256:..."."""

    name: str
    urls: tuple[str, ...] = ()
    checksum: str = ""


@dataclass(frozen=True)
class Mirror:
    """The set's file in a mirror folder. counts: None where the mirror holds the whole set."""

    file: str
    sha256: str
    deviation: str = ""
    counts: Mapping[str, tuple[int, int]] | None = None


@dataclass(frozen=True)
class Canonical:
    """The official distribution. reader: a name of `formats.READERS`; page: where a person finds it."""

    reader: str
    files: tuple[File, ...]
    page: str
    deviation: str = ""
    note: str = ""  # shown before a download: size, licence


@dataclass(frozen=True)
class DataSet:
    """One data set; bundled ones and composites (`parts`) have neither mirror nor canonical source.

    names: class names where the official files hold none. shape: stored (H, W, C) when read from the official
    files. counts: (training, test) images per domain; empty where they are not known beforehand.
    """

    title: str
    classes: int
    shape: tuple[int, int, int]
    domains: tuple[str, ...]
    counts: Mapping[str, tuple[int, int]]
    names: tuple[str, ...] = ()
    official_split: bool = True
    bundled: bool = False
    parts: tuple[str, ...] = ()
    mirror: Mirror | None = None
    canonical: Canonical | None = None


def find(name: str) -> DataSet:
    """The entry of a set; DataError names the nearest known one."""
    if name not in REGISTRY:
        raise DataError(unknown("data set", name, REGISTRY))
    return REGISTRY[name]


def _single(name: str, title: str, shape: tuple[int, int, int], train: int, test: int, **more) -> DataSet:
    """A set of one domain, which is called as the set."""
    return DataSet(title=title, shape=shape, domains=(name,), counts={name: (train, test)}, **more)


def _domains(title: str, shape: tuple[int, int, int], counts: dict[str, int], **more) -> DataSet:
    """A set of several domains without an official split."""
    return DataSet(
        title=title,
        shape=shape,
        domains=tuple(counts),
        counts={d: (n, 0) for d, n in counts.items()},
        official_split=False,
        **more,
    )


def _idx(bases: tuple[str, ...], **checksums: str) -> tuple[File, ...]:
    """The four files of MNIST and its relatives, at every base address."""
    names = (
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    )
    return tuple(
        File(name, tuple(base + name for base in bases), f"md5:{md5}")
        for name, md5 in zip(names, checksums.values(), strict=True)
    )


def _domainnet_files() -> tuple[File, ...]:
    """Archive, training list and test list of every domain. For clipart and painting the owners recommend the
    cleaned version."""
    base = "http://csr.bu.edu/ftp/visda/2019/multi-source/"
    md5 = {
        "clipart": (
            "cd0d8f2d77a4e181449b78ed62bccf1e",
            "b4349693a7f9c05c53955725c47ed6cb",
            "f5ddbcfd657a3acf9d0f7da10db22565",
        ),
        "infograph": (
            "720380b86f9e6ab4805bb38b6bd135f8",
            "379b50054f4ac2018dca4f89421b92d9",
            "779626b50869edffe8ea6941c3755c71",
        ),
        "painting": (
            "1ae32cdb4f98fe7ab5eb0a351768abfd",
            "7db0e7ca73ad9982f6e1f7f3ef372c0a",
            "232b35dc53f26d414686ae579e38d9b5",
        ),
        "quickdraw": (
            "bdc1b6f09f277da1a263389efe0c7a66",
            "b732ced3939ac8efdd8c0a889dca56cc",
            "c1a828fdfe216fb109f1c0083a252c6f",
        ),
        "real": (
            "dcc47055e8935767784b7162e7c7cca6",
            "8ebf02c2075fadd564705f0dc7cd6291",
            "6098816791c3ebed543c71ffa11b9054",
        ),
        "sketch": (
            "658d8009644040ff7ce30bb2e820850f",
            "1233bd18aa9a8a200bf4cecf1c34ef3e",
            "d8a222e4672cfd585298aa14d02ea441",
        ),
    }
    files = []
    for domain, (archive, train, test) in md5.items():
        cleaned = "groundtruth/" if domain in ("clipart", "painting") else ""
        files += [
            File(f"{domain}.zip", (f"{base}{cleaned}{domain}.zip",), f"md5:{archive}"),
            File(f"{domain}_train.txt", (f"{base}domainnet/txt/{domain}_train.txt",), f"md5:{train}"),
            File(f"{domain}_test.txt", (f"{base}domainnet/txt/{domain}_test.txt",), f"md5:{test}"),
        ]
    return tuple(files)


_EMNIST = (
    File(
        "emnist-gzip.zip",
        ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
        "md5:58c8d27c78d21e728a6bc7b3cc06412e",
    ),
)
_EMNIST_PAGE = "https://www.nist.gov/itl/products-and-services/emnist-dataset"
_SQUASHED = "images squashed to 224x224 (bilinear, antialiased)"
_CIFAR_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
_MIRROR_ORDER = "order inside a class is the mirror's"

REGISTRY: dict[str, DataSet] = {
    # -- bundled with scikit-learn: no network --
    "digits": _single(
        "digits",
        "Handwritten digits of scikit-learn",
        (8, 8, 1),
        1437,
        360,
        classes=10,
        names=DIGITS,
        bundled=True,
    ),
    "digit_domains": DataSet(
        "Four domains derived from scikit-learn's handwritten digits",
        classes=10,
        names=DIGITS,
        shape=(16, 16, 3),
        bundled=True,
        domains=("scanned", "inverted", "rotated", "noisy"),
        counts={"scanned": (360, 90), "inverted": (359, 90), "rotated": (359, 90), "noisy": (359, 90)},
    ),
    "photo_patches": _single(
        "photo_patches",
        "Patches of scikit-learn's two sample photographs",
        (16, 16, 3),
        2080,
        0,
        classes=0,
        official_split=False,
        bundled=True,
    ),
    # -- digits and characters --
    "mnist": _single(
        "mnist",
        "MNIST",
        (28, 28, 1),
        60_000,
        10_000,
        classes=10,
        names=DIGITS,
        mirror=Mirror("mnist.npz", "be961a7cbf4842c79c2da04147a725148d33bafb38628a2ec0722b52e33019d9"),
        canonical=Canonical(
            "idx",
            _idx(
                ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
                train_images="f68b3c2dcbeaaa9fbdd348bbdeb94873",
                train_labels="d53e105ee54ea40749a09fcbcd1e9432",
                test_images="9fb629c4189551a2d022fa330f9573f3",
                test_labels="ec29112dd5afa0611ce80d1b7f02629c",
            ),
            page="http://yann.lecun.com/exdb/mnist/",
        ),
    ),
    "usps": _single(
        "usps",
        "USPS",
        (16, 16, 1),
        7_291,
        2_007,
        classes=10,
        names=DIGITS,
        mirror=Mirror(
            "usps.npz",
            "79dbca618db7efa3cd778f37df68f99800bb7d6971bccb7ed0a8b7770e49381a",
            "grey levels rounded, not cut off as torchvision does (up to 1 of 255)",
        ),
        canonical=Canonical(
            "usps",
            tuple(
                File(
                    name,
                    (f"https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/{name}",),
                    f"md5:{md5}",
                )
                for name, md5 in (
                    ("usps.bz2", "ec16c51db3855ca6c91edd34d0e9b197"),
                    ("usps.t.bz2", "8ea070ee2aca1ac39742fdd1ef5ed118"),
                )
            ),
            page="https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html#usps",
        ),
    ),
    "svhn": _single(
        "svhn",
        "SVHN, cropped digits",
        (32, 32, 3),
        73_257,
        26_032,
        classes=10,
        names=DIGITS,
        canonical=Canonical(
            "svhn",
            tuple(
                File(name, (f"http://ufldl.stanford.edu/housenumbers/{name}",), f"md5:{md5}")
                for name, md5 in (
                    ("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
                    ("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
                )
            ),
            page="http://ufldl.stanford.edu/housenumbers/",
            note="246 MB; for non-commercial use",
        ),
    ),
    # Two sets are called SYN: that of Roy et al. 2018, which FCCL+ cites and of whose 10,000 images its 1,800
    # are 18 %; and Ganin and Lempitsky's, in the cut that the authors of Digit-Five passed on, to which
    # FedLSA's Table 1 and FedCCL's Digit-5 fit.
    "syn": _single(
        "syn",
        "Synthetic digits (Roy et al. 2018)",
        (32, 32, 3),
        10_000,
        2_000,
        classes=10,
        names=DIGITS,
        canonical=Canonical(
            "syn",
            (File("synthetic-digits.zip"),),
            page="https://www.kaggle.com/datasets/prasunroy/synthetic-digits",
            deviation="images squashed to 32x32 (bilinear, antialiased)",
        ),
    ),
    "synth_digits": _single(
        "synth_digits",
        "Synthetic Digits (Ganin and Lempitsky 2015), the cut of Digit-Five",
        (32, 32, 3),
        25_000,
        9_000,
        classes=10,
        names=DIGITS,
        canonical=Canonical(
            "synth_digits",
            (File("syn_number.mat"),),
            page="a Google Drive link at https://github.com/VisionLearningGroup/"
            "VisionLearningGroup.github.io/issues/4 (Digit-Five.zip, of which this file is one)",
        ),
    ),
    "mnistm": _single(
        "mnistm",
        "MNIST-M",
        (32, 32, 3),
        59_001,
        9_001,
        classes=10,
        names=DIGITS,
        mirror=Mirror(
            "mnistm.npz",
            "c3619057db1063b1a6fdf04dbf306ebd7ba8379cc96fe0157e2d761bb059f3b0",
            "class-balanced sample: 12,000 of 59,001 training and 5,000 of 9,001 test images, JPEG "
            "re-encoded",
            {"mnistm": (12_000, 5_000)},
        ),
        canonical=Canonical(
            "mnistm",
            (
                File(
                    "mnist_m.tar.gz",
                    ("https://cornell.box.com/shared/static/jado7quprg6hzzdubvwzh9umr75damwi",),
                    "md5:859df31c91afe82e80e5012ba928f279",
                ),
            ),
            page="http://yaroslav.ganin.net/",
        ),
    ),
    "fashion_mnist": _single(
        "fashion_mnist",
        "Fashion-MNIST",
        (28, 28, 1),
        60_000,
        10_000,
        classes=10,
        names=FASHION,
        mirror=Mirror(
            "fashion_mnist_complete.npz",
            "5168f126ce62534e08e5e3582b9ee9b645ca97347160c7c89bd34a4e22c9dcfd",
            "complete and lossless, in shuffled order",
        ),
        canonical=Canonical(
            "idx",
            _idx(
                ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
                train_images="8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                train_labels="25c81989df183df01b3e8a0aad5dffbe",
                test_images="bef4ecab320f06d8554ea6380940ec79",
                test_labels="bb300cfdad3c16e7a12a480ee83cd310",
            ),
            page="https://github.com/zalandoresearch/fashion-mnist",
        ),
    ),
    "emnist_balanced": _single(
        "emnist_balanced",
        "EMNIST Balanced",
        (28, 28, 1),
        112_800,
        18_800,
        classes=47,
        names=BALANCED,
        canonical=Canonical(
            "emnist_balanced", _EMNIST, page=_EMNIST_PAGE, note="536 MB, all EMNIST splits in one archive"
        ),
    ),
    "emnist_letters": _single(
        "emnist_letters",
        "EMNIST Letters",
        (28, 28, 1),
        124_800,
        20_800,
        classes=26,
        names=LETTERS,
        mirror=Mirror(
            "emnist_letters.npz",
            "d3ce898b8a4e158e0b825eda70957f0261178a9f84ec305d5616a3198d384214",
            "class-balanced sample: 10,400 of 124,800 training and 2,600 of 20,800 test images",
            {"emnist_letters": (10_400, 2_600)},
        ),
        canonical=Canonical(
            "emnist_letters", _EMNIST, page=_EMNIST_PAGE, note="536 MB, all EMNIST splits in one archive"
        ),
    ),
    # -- photographs, one domain --
    "cifar10": _single(
        "cifar10",
        "CIFAR-10",
        (32, 32, 3),
        50_000,
        10_000,
        classes=10,
        mirror=Mirror(
            "cifar10.npz",
            "7077758ca4306f5a87411556d6a1e256f5f42937bccf4a60ef4c2b6e0845d61b",
            "complete and lossless, in shuffled order",
        ),
        canonical=Canonical(
            "cifar10",
            (
                File(
                    "cifar-10-binary.tar.gz",
                    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                    "md5:c32a1d4ab5d03f1284b67883e8d87530",
                ),
            ),
            page=_CIFAR_PAGE,
        ),
    ),
    "cifar100": _single(
        "cifar100",
        "CIFAR-100",
        (32, 32, 3),
        50_000,
        10_000,
        classes=100,
        mirror=Mirror(
            "cifar100.npz",
            "f6bb513e091b8acbe045df2e874ca023fb3c9fc7e8137aeb2224723f8be5d96b",
            "random sample: 10,000 of 50,000 training and 2,000 of 10,000 test images, JPEG re-encoded",
            {"cifar100": (10_000, 2_000)},
        ),
        canonical=Canonical(
            "cifar100",
            (
                File(
                    "cifar-100-binary.tar.gz",
                    ("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",),
                    "md5:03b5dce01913d631647c71ecec9e9cb8",
                ),
            ),
            page=_CIFAR_PAGE,
        ),
    ),
    # One domain per corruption; inside a domain the CIFAR-10 test set five times, severity 1 to 5.
    "cifar10_c": DataSet(
        "CIFAR-10-C",
        classes=10,
        shape=(32, 32, 3),
        domains=CORRUPTIONS,
        counts=dict.fromkeys(CORRUPTIONS, (0, 50_000)),
        names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        canonical=Canonical(
            "cifar10_c",
            (
                File(
                    "CIFAR-10-C.tar",
                    ("https://zenodo.org/records/2535967/files/CIFAR-10-C.tar?download=1",),
                    "md5:56bf5dcef84df0e2308c6dcbcbbd8499",
                ),
            ),
            page="https://zenodo.org/records/2535967",
            note="2.9 GB",
        ),
    ),
    "tiny_imagenet": _single(
        "tiny_imagenet",
        "Tiny-ImageNet; its validation set serves as test set",
        (64, 64, 3),
        100_000,
        10_000,
        classes=200,
        mirror=Mirror(
            "tiny_imagenet32.npz",
            "be59027d7041ed8cbd4a1a76e2216919ef1311c92bfc4be5be86cc303d7e414f",
            "class-balanced sample: 10,000 of 100,000 training and 2,000 of 10,000 validation images, "
            "32x32 instead of 64x64, JPEG re-encoded",
            {"tiny_imagenet": (10_000, 2_000)},
        ),
        canonical=Canonical(
            "tiny_imagenet",
            (
                File(
                    "tiny-imagenet-200.zip",
                    ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
                    "md5:90528d7ca1a48142e341f4ef8d21d0de",
                ),
            ),
            page="http://cs231n.stanford.edu/",
            note="248 MB; for non-commercial research",
        ),
    ),
    # -- several domains --
    "office_caltech10": _domains(
        "Office-Caltech-10",
        (224, 224, 3),
        {"amazon": 958, "caltech": 1_123, "dslr": 157, "webcam": 295},
        classes=10,
        mirror=Mirror(
            "office_caltech10.npz",
            "f650e2010530415c35b1af3db9a5d377455f2de51ac3ce0847420d3e9d4cb592",
            f"images squashed to 64x64 (bilinear, antialiased), JPEG re-encoded; {_MIRROR_ORDER}",
        ),
        canonical=Canonical(
            "folders",
            (File("office_caltech10.zip"),),
            deviation=_SQUASHED,
            page="https://github.com/ChristophRaab/Office_Caltech_DA_Dataset (Code, Download ZIP)",
        ),
    ),
    "office31": _domains(
        "Office-31",
        (224, 224, 3),
        {"amazon": 2_817, "dslr": 498, "webcam": 795},
        classes=31,
        canonical=Canonical(
            "folders",
            # google-deepmind/dm_nevis, handlers/office31.py; another public script states the same
            (File("domain_adaptation_images.tar.gz", checksum="md5:1b536d114869a5a8aa4580b89e9758fb"),),
            deviation=_SQUASHED,
            page="https://faculty.cc.gatech.edu/~judy/domainadapt/ (a Google Drive link)",
        ),
    ),
    "office_home": _domains(
        "Office-Home",
        (224, 224, 3),
        {"art": 2_427, "clipart": 4_365, "product": 4_439, "real_world": 4_357},
        classes=65,
        canonical=Canonical(
            "folders",
            (File("OfficeHomeDataset_10072016.zip", checksum="md5:b1c14819770c4448fd5b6d931031c91c"),),
            deviation=_SQUASHED,
            page="https://www.hemanthdv.org/officeHomeDataset.html (a Google Drive link; "
            "non-commercial research)",
        ),
    ),
    "pacs": _domains(
        "PACS",
        (224, 224, 3),
        {"art_painting": 2_048, "cartoon": 2_344, "photo": 1_670, "sketch": 3_929},
        classes=7,
        mirror=Mirror(
            "pacs.npz",
            "42a16e376953810017a4995a19f3a4c7a0584548050edb9e0ba07a03bc9df135",
            f"227x227 images resized to 64x64 (bilinear, antialiased), JPEG re-encoded; {_MIRROR_ORDER}",
        ),
        canonical=Canonical(
            "folders",
            (File("PACS.zip"),),
            deviation="227x227 images resized to 224x224 (bilinear, antialiased)",
            page="https://domaingeneralization.github.io/ (a Google Drive link) or "
            "https://github.com/MachineLearning2020/Homework3-PACS (Code, Download ZIP)",
        ),
    ),
    "domainnet": DataSet(
        "DomainNet, ten classes",
        classes=10,
        names=DOMAINNET,
        shape=(224, 224, 3),
        counts={},
        domains=("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
        canonical=Canonical(
            "domainnet",
            _domainnet_files(),
            page="http://ai.bu.edu/M3SDA/",
            deviation=_SQUASHED,
            note="about 17 GB for all six domains, of which ten classes are unpacked; for research use",
        ),
    ),
    # -- unions of other sets, one domain per part --
    "digits4": DataSet(
        "Digits: MNIST, USPS, SVHN, SYN of Roy et al.",
        classes=10,
        names=DIGITS,
        shape=(32, 32, 3),
        domains=("mnist", "usps", "svhn", "syn"),
        counts={},
        parts=("mnist", "usps", "svhn", "syn"),
    ),
    "digits4_synth": DataSet(
        "Digits: MNIST, USPS, SVHN, Synthetic Digits of Ganin and Lempitsky",
        classes=10,
        names=DIGITS,
        shape=(32, 32, 3),
        domains=("mnist", "usps", "svhn", "synth_digits"),
        counts={},
        parts=("mnist", "usps", "svhn", "synth_digits"),
    ),
    "digit5": DataSet(
        "Digit-5: MNIST, USPS, SVHN, Synthetic Digits, MNIST-M",
        classes=10,
        names=DIGITS,
        shape=(32, 32, 3),
        domains=("mnist", "usps", "svhn", "synth_digits", "mnistm"),
        counts={},
        parts=("mnist", "usps", "svhn", "synth_digits", "mnistm"),
    ),
}
