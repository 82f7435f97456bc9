// Package require says what a test needs from the machine it runs on: root,
// BPF, a program, a cgroup v2 hierarchy, a data set. A test that calls it and
// does not find the thing skips with a reason that names what is missing and
// how to get it. Where the environment variable PSIDECAR_REQUIRE_ALL is 1, as
// in continuous integration, it fails instead, so that a test is never
// skipped there unseen. Data sets and captures are no part of the product: where
// ../shared is not there, or has no data sets, tests skip everywhere; a folder
// that a variable names, the captures beside data sets and a file that a folder
// lacks are missing as anything else is.
//
// Every package's tests may call it and are linked with it, so it imports nothing of
// ours, and no library but for system calls.
//
// [NoError] requires of a step of a test that it succeeds, and [Await] and [Eventually] that something comes about.
package require

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// All reports whether missing requirements must fail the test
// (PSIDECAR_REQUIRE_ALL=1) rather than skip it.
func All() bool { return os.Getenv("PSIDECAR_REQUIRE_ALL") == "1" }

// Missing skips the test, or fails it where [All] holds. The message is
// formatted as in fmt.Sprintf and says what is missing and what to do.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if All() {
		t.Fatalf("required (PSIDECAR_REQUIRE_ALL=1): "+format, args...)
		return
	}
	t.Skipf(format, args...)
}

// TB is what [NoError] needs of a test, be it of package testing or of rapid.
type TB interface {
	Helper()
	Fatal(args ...any)
}

// NoError ends the test with err, if that is not nil.
func NoError(t TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// Value is for what a call returns, Value(f())(t), and ends the test with its error, if there is one.
func Value[V any](v V, err error) func(t TB) V {
	return func(t TB) V {
		t.Helper()
		NoError(t, err)
		return v
	}
}

// patience is how long Await waits. It ends what hangs, and is long enough for any machine:
// a wait that ends well does not take longer for it.
const patience = 6 * time.Minute

// Await waits until ask returns no error, and ends the test with the last one when its patience is
// over. It asks again after a millisecond, then after twice as long each time, up to 100 ms.
func Await(t TB, what string, ask func() error) {
	t.Helper()
	pause := time.Millisecond
	for end := time.Now().Add(patience); ; time.Sleep(pause) {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(fmt.Sprintf("not so after %v: %s: %v", patience, what, err))
		}
		pause = min(2*pause, 100*time.Millisecond)
	}
}

// Eventually is Await of a condition.
func Eventually(t TB, what string, holds func() bool) {
	t.Helper()
	Await(t, what, func() error {
		if !holds() {
			return errors.New("it does not hold")
		}
		return nil
	})
}

// Time is for a test that takes a while: "make test" runs with -short and leaves it
// to "make test-all".
func Time(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes a while: run without -short")
	}
}

// Cases returns how many random cases a property test tries: few with -short, else many.
func Cases(few, many int) int {
	if testing.Short() {
		return few
	}
	return many
}

// Asked returns the value of an environment variable by which somebody asks for
// a measurement or a long search, and skips the test where it is not set. Such a
// test is no part of continuous integration: what it is about must be tested
// by others that are.
func Asked(t testing.TB, variable, what string) string {
	t.Helper()
	value := os.Getenv(variable)
	if value == "" {
		t.Skipf("runs only where it is asked for: set %s to %s", variable, what)
	}
	return value
}

// Measurement skips what measures for a minute or more, unless PSIDECAR_EVAL is
// set. It is [Asked].
func Measurement(t testing.TB) {
	t.Helper()
	Asked(t, "PSIDECAR_EVAL", "1 to measure, which takes minutes")
}

// Root needs the effective user to be root.
func Root(t testing.TB) {
	t.Helper()
	if uid := os.Geteuid(); uid != 0 {
		Missing(t, "needs root, runs as uid %d: run it with sudo", uid)
	}
}

// CgroupV2 returns the mount point of the cgroup v2 hierarchy, under which the
// test may create groups: /sys/fs/cgroup on most machines, elsewhere where
// cgroup v1 is mounted as well.
func CgroupV2(t testing.TB) string {
	t.Helper()
	dir, err := cgroupMount()
	if err != nil {
		Missing(t, "needs cgroup v2: %v", err)
		return ""
	}
	probe, err := os.MkdirTemp(dir, "psd-require-")
	if err != nil {
		Missing(t, "needs a cgroup v2 hierarchy to write to: %v (run as root)", err)
		return ""
	}
	if err := os.Remove(probe); err != nil {
		t.Fatalf("removing the trial cgroup: %v", err)
	}
	return dir
}

func cgroupMount() (string, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			return f[1], nil
		}
	}
	return "", errors.New("no cgroup2 in /proc/self/mounts: mount -t cgroup2 none /sys/fs/cgroup/unified")
}

// debianPackage names where a program comes from on Debian, for those whose
// package has another name.
var debianPackage = map[string]string{
	"gpmetis":  "metis",
	"g++":      "g++",
	"protoc":   "protobuf-compiler",
	"bpftool":  "bpftool",
	"tc":       "iproute2",
	"ip":       "iproute2",
	"go":       "golang-go",
	"promtool": "prometheus",
	"etcd":     "etcd-server",
}

// Program returns the path of the first of the named programs that is on PATH.
func Program(t testing.TB, names ...string) string {
	t.Helper()
	var packages []string
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
		pkg, ok := debianPackage[name]
		if !ok {
			pkg = name
		}
		packages = append(packages, pkg)
	}
	Missing(t, "needs the program %s: apt-get install %s",
		strings.Join(names, " or "), strings.Join(packages, " (or) "))
	return ""
}

// Dataset returns the path of a file of the data set folder: the one named by
// PSIDECAR_DATASETS, else ../shared/datasets beside the module. It skips where
// the file is absent.
func Dataset(t testing.TB, name string) string {
	t.Helper()
	return shared(t, "PSIDECAR_DATASETS", "datasets", name, true)
}

// Capture returns the path of a recording of real PS-lite traffic: in the
// folder named by PSIDECAR_CAPTURES, else in ../shared/captures beside the
// module. It skips where the file is absent.
func Capture(t testing.TB, name string) string {
	t.Helper()
	return shared(t, "PSIDECAR_CAPTURES", "captures", name, false)
}

func shared(t testing.TB, variable, folder, name string, optional bool) string {
	t.Helper()
	dir, beside := os.Getenv(variable), ""
	if dir == "" {
		root, err := moduleRoot()
		if err != nil {
			t.Fatalf("looking for the module's folder: %v", err)
		}
		beside = filepath.Join(filepath.Dir(root), "shared")
		dir = filepath.Join(beside, folder)
	}
	path := filepath.Join(dir, name)
	_, err := os.Stat(path)
	if err == nil {
		return path
	}
	if beside != "" && !exists(dir) && (optional || !exists(beside)) {
		t.Skipf("needs %s: %v (set %s to the folder that holds it)", name, err, variable)
		return ""
	}
	Missing(t, "needs %s: %v (set %s to the folder that holds it)", name, err, variable)
	return ""
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// ModuleRoot returns the folder of go.mod.
func ModuleRoot(t testing.TB) string {
	t.Helper()
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// moduleRoot walks up from the working directory to the folder of go.mod.
func moduleRoot() (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no go.mod above " + wd)
		}
	}
}
