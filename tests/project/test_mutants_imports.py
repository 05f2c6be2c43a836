"""What a mutant can change is imported anew, and what it cannot change only once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.mutants.imports import name_of, reached, read_imports, reverse
from tests.support.paths import REPO

FILES = {
    "shop/__init__.py": "",
    "shop/price.py": "PRICE = 3\n",
    "shop/bill.py": "from shop.price import PRICE\n\n\ndef late():\n    import shop.paper\n",
    "shop/paper.py": "from os import path\n",
    "shop/door.py": "from shop import paper\n",
    "shop/till/__init__.py": "from shop.price import PRICE\n",
    "shop/till/drawer.py": "",
    "shop/test_bill.py": "from shop import bill, door\nfrom shop.till import drawer\n",
}
WARM = """
import sys
from pathlib import Path
from tests.mutants.imports import keep_warm, read_imports

root = Path(sys.argv[1])
sys.path.insert(0, str(root))
graph = read_imports(root, ["shop"])
for mutated in ("shop.price", "shop.paper"):
    keep_warm(graph, mutated, ["shop.test_bill"])
    print(*sorted(name for name in sys.modules if name.startswith("shop")))
from shop import paper
print(paper.__name__)
"""


def shop(folder: Path) -> Path:
    """Write a package of a few modules."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_imports_are_read_wherever_they_stand(tmp_path: Path) -> None:
    graph = read_imports(shop(tmp_path), ["shop"])
    assert graph == {
        "shop": set(),
        "shop.price": {"shop"},
        "shop.bill": {"shop", "shop.price", "shop.paper"},
        "shop.paper": {"shop"},
        "shop.door": {"shop", "shop.paper"},
        "shop.till": {"shop", "shop.price"},
        "shop.till.drawer": {"shop", "shop.till"},
        "shop.test_bill": {"shop", "shop.bill", "shop.door", "shop.till", "shop.till.drawer"},
    }
    assert reached(graph, ["shop.door"]) == {"shop.door", "shop", "shop.paper"}
    users = reached(reverse(graph), ["shop.price"])
    # Python imports a module's package before it, and with that what the package imports.
    assert users == {"shop.price", "shop.bill", "shop.till", "shop.till.drawer", "shop.test_bill"}
    assert name_of(Path("shop/__init__.py")) == "shop"


def test_only_what_a_mutant_cannot_change_stays(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WARM, str(shop(tmp_path))],
        cwd=REPO, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    first, second, name = done.stdout.splitlines()
    assert first.split() == ["shop", "shop.door", "shop.paper"]
    # The bill imports the paper late: it is forgotten with it, and so is the door.
    assert second.split() == ["shop", "shop.price", "shop.till", "shop.till.drawer"]
    assert name == "shop.paper"


def test_a_module_that_was_imported_before_its_mutant_ends_the_run(tmp_path: Path) -> None:
    """An import by name is in no syntax tree."""
    root = shop(tmp_path)
    late = "import importlib\n\nimportlib.import_module('shop.price')\n"
    (root / "shop/door.py").write_text(late)
    done = subprocess.run(
        [sys.executable, "-c", WARM, str(root)],
        cwd=REPO, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "RuntimeError: shop.price was imported before shop.price was mutated" in done.stderr
