"""The bill of materials names what NOTICE names, in CycloneDX's form."""

import json
import re
import subprocess
import sys

from checkout import ROOT


def test_bill_matches_notice(tmp_path):
    out = tmp_path / "sbom.cdx.json"
    subprocess.run([sys.executable, ROOT / "scripts" / "sbom.py", out], check=True)
    bill = json.loads(out.read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["name"] == "steep"

    notice = (ROOT / "NOTICE").read_text().split("The texts of the BSD")[0]
    named = {
        name
        for entry in re.findall(r"^(\S.*?) +Copyright", notice, re.M)
        for name in entry.split(", ")
    } - {"GoogleTest"}  # in the tests only
    components = {c["name"]: c for c in bill["components"]}
    assert set(components) == named

    refs = {c["bom-ref"] for c in bill["components"]}
    linked = {d for entry in bill["dependencies"] for d in entry["dependsOn"]}
    assert linked == refs
    for c in components.values():
        assert c["type"] == "library" and len(c["licenses"]) == 1
        assert ("purl" in c) == ("version" in c)
    # What this build surely used says which version it was.
    assert "version" in components["ONNX"] and "version" in components["oneDNN"]
    again = tmp_path / "again.json"
    subprocess.run([sys.executable, ROOT / "scripts" / "sbom.py", again], check=True)
    assert again.read_bytes() == out.read_bytes()
