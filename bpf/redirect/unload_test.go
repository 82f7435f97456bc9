package redirect

import (
	"errors"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/test/require"
)

// Agents of several hosts on one machine end at once: whoever comes second finds
// the file system gone, and that is no error.
func TestUnmountedBySeveral(t *testing.T) {
	require.BPF(t)
	dir := t.TempDir()
	for range 200 {
		require.NoError(t, mount(dir))
		var g errgroup.Group
		for range 4 {
			g.Go(func() error { return unmount(dir) })
		}
		if err := g.Wait(); err != nil {
			t.Error(err)
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
				t.Fatal(err)
			}
			return
		}
	}
}
