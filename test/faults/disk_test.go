package faults

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// The disk of all services, with their logs, their sockets and the planner's
// plans, runs full while the job trains. Then they are killed, and start again on
// the full disk.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t)
	f := newFleet(t, config{disk: disk})
	r := f.start(f.counting(400, resending...))
	r.training()
	filler := filepath.Join(disk, "filler")
	fill(t, filler)
	for range 2 {
		for _, s := range f.everything() {
			old := s.Current()
			s.kill()
			f.await("another "+s.String(), func() error { return s.runs(old) })
		}
		for _, s := range f.sidecars {
			f.ready(s)
		}
	}
	if _, err := hoststest.Get(f.net.Host(0), plannerHTP, "/healthz"); err != nil {
		t.Errorf("the planner on a full disk: %v", err)
	}
	r.exact()
	if err := os.WriteFile(filepath.Join(disk, "more"), make([]byte, 1<<16), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("the disk is not full: %v", err)
	}
	f.asBefore()
}

// smallDisk mounts a file system of 2 MiB.
func smallDisk(t *testing.T) string {
	t.Helper()
	build(t) // skips where this cannot be
	dir := folder(t)
	mount(t, dir, "size=2m,mode=755")
	return dir
}

// mount mounts a file system in memory.
func mount(t *testing.T, dir, options string) {
	t.Helper()
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, options))
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// fill writes a file until there is no room left.
func fill(t *testing.T, file string) {
	t.Helper()
	w, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	defer w.Close()
	for page := make([]byte, 4096); err == nil; {
		_, err = w.Write(page)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}
