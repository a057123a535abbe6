package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// copyOfSource returns a new repository with one commit of the tracked files, or of some of them.
func copyOfSource(t *testing.T, paths ...string) string {
	t.Helper()
	dir := t.TempDir()
	e2e.Run(t, append([]string{"sh", "-ec", `cd .. && git ls-files -z -- "$@" | xargs -0 cp -P --parents -t "$0" && cd "$0" && git init -q && git add . &&
		git -c user.name=test -c user.email=test@localhost commit -q -m copy`, dir}, paths...)...)
	return dir
}

// CHANGELOG.md begins with the next version, and a tag with another version cannot be released.
func TestReleaseVersion(t *testing.T) {
	t.Parallel()
	version := regexp.MustCompile(`(?m)^## (.*)$`).FindStringSubmatch(e2e.ReadPage(t, "CHANGELOG.md"))[1]
	if !regexp.MustCompile(`^\d+\.\d+\.\d+( \(unreleased\))?$`).MatchString(version) {
		t.Errorf("CHANGELOG.md begins with version %q, want N.N.N or N.N.N (unreleased)", version)
	}
	number, _, _ := strings.Cut(version, " ")
	e2e.Contains(t, "the version of a build without a tag", e2e.ReadPage(t, "cmd/batchfs/main.go"), fmt.Sprintf(`"v%s-dev"`, number))
	dir := copyOfSource(t, "CHANGELOG.md", "deploy/release/release")
	e2e.Run(t, "git", "-C", dir, "tag", "v98.7.6")
	_, stderr, err := e2e.TryJob(t, filepath.Join(dir, "deploy/release/release"))
	if err == nil {
		t.Error("release succeeds with a tag that CHANGELOG.md lacks")
	}
	e2e.Contains(t, "standard error of release", stderr, `head it with "## 98.7.6"`)
}

// The notes of a release are the top section of CHANGELOG.md, and their links to files lead to the
// repository.
func TestReleaseNotes(t *testing.T) {
	t.Parallel()
	dir := copyOfSource(t, "CHANGELOG.md", "deploy/release/notes")
	e2e.Write(t, filepath.Join(dir, "CHANGELOG.md"), "# Changes\n\n## 1.2.3\n\nThis [page](docs/a.md#b), [that](https://c.d/e).\n\n## 1.2.2\n\nOld.\n")
	e2e.Equal(t, "the notes", e2e.Run(t, filepath.Join(dir, "deploy/release/notes"), "https://here/blob/v1.2.3"),
		"\nThis [page](https://here/blob/v1.2.3/docs/a.md#b), [that](https://c.d/e).\n\n")
	e2e.Contains(t, "release.yml", e2e.ReadPage(t, ".github/workflows/release.yml"), `deploy/release/notes "$GITHUB_SERVER_URL/$GITHUB_REPOSITORY/blob/$GITHUB_REF_NAME" >notes.md`)
}

// The wheel, from which releases take the program, its licenses and its list of modules, has the
// license of each module that is linked into the tested program, and no other.
func TestLicenses(t *testing.T) {
	t.Parallel()
	differ := e2e.Run(t, "env", "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH=../python", e2e.Python, "-c", `
import json, re, sys, wheel
bill = json.loads(wheel.bill_of_materials("1", json.loads(wheel.run("go", "version", "-m", "-json", sys.argv[1]))))
linked = {"go" if c["name"] == "std" else f"{c['name']}@{c['version']}" for c in bill["components"]}
licensed = {re.match("go/|(.+?@[^/]+)/", name) for name in wheel.licenses(wheel.this_machine()) if name != "LICENSE"}
print(sorted(linked ^ {m[1] or "go" for m in licensed}))`, e2e.PlainBatchfs)
	e2e.Equal(t, "modules that are linked but have no license, or the other way around", differ, "[]\n")
}

// make builds the program in a clone of another user too, where git refuses to work.
func TestCloneOfAnotherUser(t *testing.T) {
	e2e.NeedRoot(t, "only root may give files away")
	dir := copyOfSource(t)
	e2e.Run(t, "chown", "-R", fmt.Sprint(e2e.Nobody), dir)
	t.Setenv("GIT_CONFIG_GLOBAL", "/dev/null") // might trust all directories
	if e2e.Command(t, "git", "-C", dir, "status").Run() == nil {
		t.Skip("git works in the clone: it is too old to refuse, or configured not to")
	}
	e2e.RunJob(t, "make", "-s", "-C", dir, "--eval", "list: ; @go list -deps -f {{.Dir}} ./cmd/batchfs", "list")
}

// The script release makes all files of a release. In this test, the program is not batchfs, whose
// build for two architectures takes long. The packages depend on fuse3, and those of a build before
// a release have a lower version. deploy/release/packages installs and uses the files.
func TestRelease(t *testing.T) {
	e2e.SkipIfShort(t)
	t.Parallel()
	nfpm := regexp.MustCompile(`(?m)^nfpm=(\S+)$`).FindStringSubmatch(e2e.ReadPage(t, "deploy/release/release"))[1]
	if _, stderr, err := e2e.TryJob(t, "go", "run", nfpm, "--version"); err != nil {
		e2e.SkipOrFail(t, "no %s: %v\n%s", nfpm, err, stderr)
	}
	dir, out := t.TempDir(), filepath.Join(t.TempDir(), "release")
	program, python := filepath.Join(dir, "program"), e2e.Must(exec.LookPath(e2e.Python))(t)
	e2e.Write(t, program+".go", "package main\n\nimport _ \"golang.org/x/term\"\n\nfunc main() {}\n")
	e2e.RunJob(t, "go", "build", "-o", program, program+".go")
	e2e.WriteScript(t, filepath.Join(dir, "python3"), `#!/bin/sh
[ "$1" = python/wheel.py ] || exec `+python+` "$@"
shift
exec env PYTHONPATH=python PYTHONDONTWRITEBYTECODE=1 `+python+` -c 'import json, shutil, wheel
def build(arch, version, out):
    shutil.copy("`+program+`", out)
    return json.loads(wheel.run("go", "version", "-m", "-json", str(out)))
wheel.build = build
wheel.main()' "$@"
`)
	e2e.RunJob(t, "env", "PATH="+dir+":"+os.Getenv("PATH"), "../deploy/release/release", out)

	wheel := e2e.Must(filepath.Glob(out + "/*_x86_64.whl"))(t)[0]
	version := strings.Split(filepath.Base(wheel), "-")[1]
	packaged := strings.Replace(version, ".dev", "~dev", 1)
	files := "SHA256SUMS batchfs-VERSION-image.tar.gz "
	for _, arch := range [][2]string{{"amd64", "x86_64"}, {"arm64", "aarch64"}} {
		files += strings.NewReplacer("amd64", arch[0], "x86_64", arch[1]).Replace("batchfs-VERSION-linux-amd64.tar.gz batchfs-VERSION-linux-amd64.cdx.json " +
			"batchfs_PACKAGED_amd64.deb batchfs-PACKAGED-1.x86_64.rpm " + filepath.Base(wheel) + " ")
	}
	want := strings.Fields(strings.NewReplacer("VERSION", version, "PACKAGED", packaged).Replace(files))
	slices.Sort(want)
	e2e.Equal(t, "files of a release", fmt.Sprint(strings.Fields(e2e.Run(t, "env", "LC_ALL=C", "ls", out))), fmt.Sprint(want))
	e2e.Run(t, "sh", "-c", `cd "$0" && sha256sum --quiet -c SHA256SUMS`, out)
	e2e.RunJob(t, "sh", "-c", `cd ../python && BATCHFS_WHEEL=$0 PYTHONDONTWRITEBYTECODE=1 "$1" -m unittest tests.test_wheel.TestWheel.test_files`, wheel, e2e.Python)
	// deploy/release/packages looks for these when it uses a tarball or a package.
	used := strings.Fields(regexp.MustCompile(`for file in (.*); do`).FindStringSubmatch(e2e.ReadPage(t, "deploy/release/packages"))[1])
	tarball := fmt.Sprintf("batchfs-%s-linux-amd64", version)
	listed := e2e.Run(t, "tar", "-tzf", filepath.Join(out, tarball+".tar.gz"))
	for _, file := range append(used, "bin/batchfs", "lib/systemd/system/batchfs.service") {
		e2e.Contains(t, "the tarball", listed, "\n"+tarball+"/"+file+"\n")
	}
	image := e2e.Run(t, "tar", "-tzf", filepath.Join(out, fmt.Sprintf("batchfs-%s-image.tar.gz", version)))
	for _, file := range []string{"Dockerfile", "amd64/batchfs", "arm64/batchfs"} {
		e2e.Contains(t, "the context of the image", image, "/"+file+"\n")
	}
	e2e.Contains(t, "the Dockerfile in it", e2e.ReadPage(t, "deploy/release/Dockerfile"), "\nCOPY $TARGETARCH/batchfs /usr/local/bin/batchfs\n")
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip(err)
	}
	deb := filepath.Join(out, fmt.Sprintf("batchfs_%s_amd64.deb", packaged))
	e2e.Equal(t, "fields of the Debian package", e2e.Run(t, "dpkg-deb", "--field", deb, "Version", "Depends"), "Version: "+packaged+"\nDepends: fuse3\n")
	e2e.Run(t, "dpkg", "--compare-versions", "1.2.3~dev0", "lt", "1.2.3")
}

// After move-module, go list finds every package that is imported, and none by the old path.
func TestMoveModule(t *testing.T) {
	e2e.SkipIfShort(t)
	dir := copyOfSource(t)
	e2e.RunJob(t, filepath.Join(dir, "deploy/release/move-module"), "example.org/team/batchfs")
	for imported := range strings.FieldsSeq(e2e.RunJob(t, "go", "list", "-C", dir, "-test", "-deps", "./...")) {
		if strings.HasPrefix(imported, "batchfs/") {
			t.Errorf("%s is imported by the old path", imported)
		}
	}
	e2e.Equal(t, "files that gofmt would change", e2e.Run(t, "gofmt", "-l", dir), "")
}
