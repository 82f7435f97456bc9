package daemon

import (
	"errors"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/test/require"
)

// A state folder in memory is told from one elsewhere, also before it is made.
func TestFoldersOnDisk(t *testing.T) {
	memory := t.TempDir()
	if err := unix.Mount("tmpfs", memory, "tmpfs", 0, "size=64k"); err != nil {
		if errors.Is(err, unix.EPERM) {
			require.Missing(t, "needs CAP_SYS_ADMIN to mount a file system in memory")
		}
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(memory, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	for dir, want := range map[string]bool{"": false, "/proc": true, "/proc/not/there": true, memory: false, filepath.Join(memory, "not", "there"): false} {
		if got := onDisk(dir); got != want {
			t.Errorf("%q: on disk is %v, want %v", dir, got, want)
		}
	}
}
