package hoststest

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/test/require"
)

// built has the programs that this process has built, by folder; mu guards it.
var (
	mu    sync.Mutex
	built = map[string]string{}
)

// BuildJob builds a program of this module, such as cmd/psjob, and returns its path. It is
// linked once for all packages' tests, in bin/test of the module: the go command leaves a program
// alone that is up to date. The lock keeps two packages from building it at once.
func BuildJob(t testing.TB, folder string) string {
	t.Helper()
	mu.Lock()
	defer mu.Unlock()
	if path, ok := built[folder]; ok {
		return path
	}
	dir := filepath.Join(require.ModuleRoot(t), "bin", "test")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	lock := require.Value(os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644))(t)
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatalf("locking %s: %v", lock.Name(), err)
	}
	path := filepath.Join(dir, filepath.Base(folder))
	out, err := exec.Command(require.Program(t, "go"), "build", "-o", path, "github.com/psidecar/psidecar/"+folder).CombinedOutput()
	if err != nil {
		t.Fatalf("building %s: %v\n%s", folder, err, out)
	}
	built[folder] = path
	return path
}

// WhileTraining returns a file for psjob's --count-while, and what removes it, so that a job makes
// steps for as long as a test has something to do to it.
func WhileTraining(t testing.TB) (path string, end func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "while")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	return path, func() {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
}
