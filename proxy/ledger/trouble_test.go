package ledger

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/proxy/route"
	"github.com/psidecar/psidecar/test/require"
)

// smallDisk returns a folder on a file system of so many bytes.
func smallDisk(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		if errors.Is(err, unix.EPERM) {
			require.Missing(t, "needs CAP_SYS_ADMIN to mount a small file system")
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill takes all room that there is, and returns who gives it back.
func fill(t *testing.T, dir string) (empty func()) {
	t.Helper()
	name := filepath.Join(dir, "filler")
	f, err := os.Create(name)
	require.NoError(t, err)
	defer f.Close()
	for page := make([]byte, 4096); err == nil; {
		_, err = f.Write(page)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	return func() {
		require.NoError(t, os.Remove(name))
	}
}

func id(server, timestamp int32) route.ID { return route.ID{Server: server, Timestamp: timestamp} }

// run opens and ends requests, and leaves every tenth open.
func run(l *Ledger, from, n int32) (ids []route.ID) {
	for at := from; at < from+n; at++ {
		l.Open(route.Kept{ID: id(at%3, at), Own: l.Next(), Owners: []int32{1}})
		if at%10 > 0 {
			l.Close(id(at%3, at))
		}
		ids = append(ids, id(at%3, at))
	}
	return ids
}

// A ledger for which the disk has no room is in memory, says so, and is on the
// disk when there is room.
func TestFullFromTheStart(t *testing.T) {
	dir := smallDisk(t, "size=1m")
	empty := fill(t, dir)
	path, o := filepath.Join(dir, "worker-9"), Options{Servers: 3, Space: &Space{Limit: 1 << 20}}
	l := open(t, path, o)
	l.UseResend()
	ids := run(l, 0, 100)
	if err := l.Trouble(); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), path) {
		t.Fatalf("on a full disk there is trouble: %v", err)
	}
	l.Check()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that cannot be written is there: %v", err)
	}
	empty()
	l.Check()
	require.NoError(t, l.Trouble())
	ids = append(ids, run(l, 100, 100)...)
	same(t, "with room again", killed(t, path, o), l, ids)
	if used := o.Space.Used(); used != l.file.size() {
		t.Errorf("it counts %d bytes", used)
	}
}

// A ledger on a disk that runs full goes on with what it has; when that is not
// enough its file says so, until there is room.
func TestRunsFullOfDiskAndGoesOn(t *testing.T) {
	dir := smallDisk(t, "size=1m")
	path, o := filepath.Join(dir, "worker-9"), Options{Servers: 3}
	l := open(t, path, o)
	l.UseResend()
	ids := run(l, 0, 1000)
	empty := fill(t, dir)
	// The windows get shorter, where they would have needed more.
	last := int32(0)
	for at := int32(1000); at < 200_000; at += 64 {
		l.Open(route.Kept{ID: id(at/64%3, at)})
		l.Close(id(at/64%3, at))
		last = at
	}
	if err := l.Trouble(); err != nil {
		t.Fatalf("shorter windows have no room: %v", err)
	}
	if n := len(l.windows[place{0, 0}].blocks); n < minBlocks || n >= l.perWindow() {
		t.Errorf("a window has %d blocks", n)
	}
	same(t, "on a full disk", killed(t, path, o), l, append(ids, id(last/64%3, last), id(0, last+1)))
	for at := range int32(1000) { // too many under way
		l.Open(route.Kept{ID: id(0, last+at)})
	}
	if err := l.Trouble(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("requests that the file does not have are no trouble: %v", err)
	}
	if _, err := Open(path, o); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "could not write all") {
		t.Errorf("another process finds: %v", err)
	}
	empty()
	l.Check()
	require.NoError(t, l.Trouble())
	same(t, "with room again", killed(t, path, o), l, ids)
}

// What somebody does to the file of a ledger in use is no end of the process,
// and is made good.
func TestHarmedWhileOpen(t *testing.T) {
	for name, harm := range map[string]func(path string) error{
		"cut to nothing":       func(p string) error { return os.Truncate(p, 0) },
		"cut to its header":    func(p string) error { return os.Truncate(p, headerSize) },
		"cut within":           func(p string) error { return os.Truncate(p, headerSize+8192) },
		"removed":              os.Remove,
		"removed, with folder": func(p string) error { return os.RemoveAll(filepath.Dir(p)) },
		"another in its place": func(p string) error {
			return errors.Join(os.Remove(p), os.WriteFile(p, []byte("something else"), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path, o := filepath.Join(t.TempDir(), "job", "worker-9"), Options{Servers: 3, Space: &Space{Limit: 1 << 20}}
			l := open(t, path, o)
			l.UseResend()
			ids := run(l, 0, 500)
			require.NoError(t, harm(path))
			ids = append(ids, run(l, 500, 1000)...)
			l.Check()
			require.NoError(t, l.Trouble())
			same(t, "afterwards", killed(t, path, o), l, ids)
			if used := o.Space.Used(); used != l.file.size() {
				t.Errorf("it counts %d bytes, and has %d", used, l.file.size())
			}
		})
	}
}

// All ledgers of a folder have one limit.
func TestSpaceOfAllLedgersHasOneLimit(t *testing.T) {
	space := &Space{Limit: 80 << 10}
	var all []*Ledger
	for i := range int32(4) {
		l := open(t, filepath.Join(t.TempDir(), "l"), Options{Worker: i, Servers: 3, Space: space})
		run(l, 0, 100)
		all = append(all, l)
	}
	if err := errors.Join(all[0].Trouble(), all[1].Trouble()); err != nil {
		t.Error(err)
	}
	if err := all[3].Trouble(); !errors.Is(err, errFull) {
		t.Errorf("beyond the limit there is trouble: %v", err)
	}
	if used := space.Used(); used > space.Limit {
		t.Errorf("%d bytes are in use", used)
	}
	require.NoError(t, all[0].CloseFile())
	all[3].Check()
	if err := all[3].Trouble(); err != nil {
		t.Error(err)
	}
}
