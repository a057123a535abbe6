package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"batchfs/test/e2e"
)

// copyOfSource is a repository with one commit, of the files that are tracked here.
func copyOfSource(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	e2e.Run(t, "sh", "-ec", `cd .. && git ls-files -z | xargs -0 cp -P --parents -t "$0" && cd "$0" && git init -q && git add . &&
		git -c user.name=test -c user.email=test@localhost commit -q -m copy`, dir)
	return dir
}

// CHANGELOG has the coming version on top, and a tag with another version than it has is no release.
func TestReleaseVersion(t *testing.T) {
	version := regexp.MustCompile(`(?m)^## (.*)$`).FindStringSubmatch(e2e.ReadPage(t, "CHANGELOG.md"))[1]
	if !regexp.MustCompile(`^\d+\.\d+\.\d+( \(unreleased\))?$`).MatchString(version) {
		t.Errorf("CHANGELOG.md begins with %q", version)
	}
	number, _, _ := strings.Cut(version, " ")
	e2e.Contains(t, "the version of a build without a tag", string(e2e.ReadPage(t, "cmd/batchfs/main.go")), fmt.Sprintf(`"v%s-dev"`, number))
	dir := copyOfSource(t)
	e2e.Run(t, "git", "-C", dir, "tag", "v98.7.6")
	_, stderr, err := e2e.Try(t, filepath.Join(dir, "deploy/release/release"))
	if err == nil {
		t.Error("a tag that CHANGELOG.md does not have is released")
	}
	e2e.Contains(t, "release", stderr, `head it with "## 98.7.6"`)
}

// The packages' configuration is one that nfpm takes. They need fuse3, and a version before a release is less than that.
func TestPackages(t *testing.T) {
	e2e.Long(t)
	nfpm := regexp.MustCompile(`(?m)^nfpm=(\S+)$`).FindStringSubmatch(e2e.ReadPage(t, "deploy/release/release"))[1]
	if _, stderr, err := e2e.Try(t, "go", "run", nfpm, "--version"); err != nil {
		e2e.Lack(t, "no %s: %v\n%s", nfpm, err, stderr)
	}
	dir := t.TempDir()
	e2e.NoError(t, os.MkdirAll(filepath.Join(dir, "usr/bin"), 0o755))
	e2e.Write(t, filepath.Join(dir, "usr/bin/batchfs"), "#!/bin/sh\n")
	for _, packager := range []string{"deb", "rpm"} {
		cmd := e2e.Command(t, "go", "run", nfpm, "package", "-p", packager, "-t", filepath.Join(dir, "batchfs."+packager))
		cmd.Dir = "../deploy/release"
		cmd.Env = append(os.Environ(), "ARCH=amd64", "VERSION=1.2.3~dev0", "TREE="+filepath.Join(dir, "usr"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip(err)
	}
	says := e2e.Run(t, "dpkg-deb", "--field", filepath.Join(dir, "batchfs.deb"), "Version", "Depends")
	e2e.Equal(t, "the package of Debian", says, "Version: 1.2.3~dev0\nDepends: fuse3\n")
	e2e.Run(t, "dpkg", "--compare-versions", "1.2.3~dev0", "lt", "1.2.3")
}

// The module builds under the path of a home, and nothing imports it by the old one.
func TestMoveModule(t *testing.T) {
	e2e.Long(t)
	dir := copyOfSource(t)
	e2e.Run(t, filepath.Join(dir, "deploy/release/move-module"), "example.org/team/batchfs")
	e2e.Run(t, "go", "build", "-C", dir, "-o", filepath.Join(dir, "batchfs"), "./cmd/batchfs")
	for imported := range strings.FieldsSeq(e2e.Run(t, "go", "list", "-C", dir, "-test", "-deps", "./...")) {
		if strings.HasPrefix(imported, "batchfs/") {
			t.Errorf("%s is imported", imported)
		}
	}
	e2e.Equal(t, "files that are not formatted", e2e.Run(t, "gofmt", "-l", dir), "")
}
