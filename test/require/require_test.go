package require

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// recorder is a testing.TB that notes how a test ended instead of ending it.
type recorder struct {
	testing.TB
	skipped, failed bool
	message         string
}

func (r *recorder) Helper() {}
func (r *recorder) Skipf(format string, args ...any) {
	r.skipped, r.message = true, fmt.Sprintf(format, args...)
}
func (r *recorder) Fatalf(format string, args ...any) {
	r.failed, r.message = true, fmt.Sprintf(format, args...)
}

func TestMissingProgramNamesItsDebianPackage(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("PSIDECAR_REQUIRE_ALL", "")
	r := &recorder{TB: t}
	if got := Program(r, "gpmetis"); got != "" || !r.skipped || r.failed {
		t.Fatalf("path %q, skipped %v, failed %v; want a skip", got, r.skipped, r.failed)
	}
	if !strings.Contains(r.message, "apt-get install metis") {
		t.Errorf("message %q does not name the package metis", r.message)
	}
}

func TestMissingFailsWhereAllIsRequired(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("PSIDECAR_REQUIRE_ALL", "1")
	r := &recorder{TB: t}
	Program(r, "gpmetis")
	if !r.failed || r.skipped {
		t.Fatalf("skipped %v, failed %v; want a failure", r.skipped, r.failed)
	}
}

func TestProgramReturnsTheFirstThatIsThere(t *testing.T) {
	dir := t.TempDir()
	want := filepath.Join(dir, "second")
	if err := os.WriteFile(want, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	if got := Program(t, "first", "second"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Beside a module alone, tests of shared files skip everywhere; what is to be
// expected, or was named, and is not there is missing.
func TestSharedFilesAreRequiredWhereTheirFolderIs(t *testing.T) {
	dir := t.TempDir()
	module := filepath.Join(dir, "module")
	if err := os.Mkdir(module, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(module, "go.mod"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Chdir(module)
	t.Setenv("PSIDECAR_REQUIRE_ALL", "1")
	t.Setenv("PSIDECAR_DATASETS", "")
	t.Setenv("PSIDECAR_CAPTURES", "")
	check := func(what string, ask func(testing.TB, string) string, fails bool) {
		t.Helper()
		r := &recorder{TB: t}
		if ask(r, "absent"); r.failed != fails || r.skipped == fails {
			t.Errorf("%s: skipped %v, failed %v; want a failure %v", what, r.skipped, r.failed, fails)
		}
	}
	check("data without ../shared", Dataset, false)
	check("a capture without ../shared", Capture, false)
	t.Setenv("PSIDECAR_DATASETS", filepath.Join(dir, "nowhere"))
	check("data in a folder that was named and is not there", Dataset, true)
	t.Setenv("PSIDECAR_DATASETS", "")
	if err := os.Mkdir(filepath.Join(dir, "shared"), 0o755); err != nil {
		t.Fatal(err)
	}
	check("data where ../shared has none", Dataset, false)
	check("a capture where ../shared has none", Capture, true)
	for _, folder := range []string{"datasets", "captures"} {
		if err := os.Mkdir(filepath.Join(dir, "shared", folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	check("data that the folder lacks", Dataset, true)
	check("a capture that the folder lacks", Capture, true)
	want := filepath.Join(dir, "shared", "captures", "here.pcapng")
	if err := os.WriteFile(want, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := Capture(t, "here.pcapng"); got != want {
		t.Errorf("capture at %q, want %q", got, want)
	}
}

func TestModuleRootIsFoundFromBelow(t *testing.T) {
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if rel, err := filepath.Rel(root, wd); err != nil || rel != filepath.Join("test", "require") {
		t.Errorf("module root %q is not two above %q", root, wd)
	}
}

func TestCgroupV2AndBPFOnThisMachine(t *testing.T) {
	Root(t)
	BPF(t)
	dir := CgroupV2(t)
	if _, err := os.Stat(filepath.Join(dir, "cgroup.controllers")); err != nil {
		t.Errorf("%s is not the root of a cgroup v2 hierarchy: %v", dir, err)
	}
}

// No test skips by itself: whatever is skipped says by this package why, so that
// it fails where [All] holds, or is a measurement that somebody must ask for.
func TestOnlyThisPackageSkips(t *testing.T) {
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	skip := regexp.MustCompile(`\.Skip(f|Now)?\(`)
	files := 0
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git" || path == filepath.Join(root, "test", "require")) {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || d.IsDir() {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		for i, line := range strings.Split(string(text), "\n") {
			if skip.MatchString(line) && (strings.HasSuffix(path, "_test.go") || strings.Contains(string(text), `"testing"`)) {
				t.Errorf("%s:%d skips by itself: use test/require", path, i+1)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 100 {
		t.Errorf("only %d Go files were looked at", files)
	}
}
