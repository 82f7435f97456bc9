package discover

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/test/require"
)

const (
	limit = 64 << 10
	// rootOf has this program be a process in that root directory.
	rootOf = "PSIDECAR_TEST_ROOT"
)

// liveIn makes root the process's, with a /proc, and waits for the end of stdin.
func liveIn(root string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mounts of its own: %w", err)
	}
	if err := unix.Mount("proc", filepath.Join(root, "proc"), "proc", 0, ""); err != nil {
		return fmt.Errorf("mounting proc: %w", err)
	}
	if err := errors.Join(unix.Chroot(root), unix.Chdir("/")); err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// inRoot starts a process in a root directory of its own.
func inRoot(t *testing.T, root string) int {
	t.Helper()
	self := require.Value(os.Executable())(t)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), rootOf+"="+root)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	in := require.Value(cmd.StdinPipe())(t)
	out := require.Value(cmd.StdoutPipe())(t)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			t.Log(err)
		}
	})
	said := make([]byte, 256)
	if n, err := out.Read(said); err != nil || string(said[:n]) != "ready\n" {
		t.Fatalf("the process in its root says %q, %v", said[:n], err)
	}
	return cmd.Process.Pid
}

// Whatever a process has for its hosts file, reading it ends, takes little
// memory and shows nothing from outside the process's root.
func TestReadInRootTraps(t *testing.T) {
	require.Root(t)
	outside := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(outside, []byte("198.18.0.66 outside\n"), 0o600))
	link := func(to string) func(string) error {
		return func(file string) error { return os.Symlink(to, file) }
	}
	for _, tc := range []struct {
		name string
		make func(file string) error
		err  error
	}{
		{"pagemap", link("/proc/self/pagemap"), ErrNotPlain},
		{"the reader's own pagemap", link(fmt.Sprintf("/proc/%d/pagemap", os.Getpid())), ErrNotPlain},
		{"a descriptor of the reader's", link("/proc/self/fd/0"), unix.ELOOP},
		{"another process's root", link(fmt.Sprintf("/proc/%d/root%s", os.Getpid(), outside)), unix.ELOOP},
		{"a link to outside", link(outside), fs.ErrNotExist},
		{"dots to outside", link("../../../../../../../../.." + outside), fs.ErrNotExist},
		{"kernel log", link("/proc/kmsg"), ErrNotPlain},
		{"FIFO", func(file string) error { return unix.Mkfifo(file, 0o644) }, ErrNotPlain},
		{"device", func(file string) error { return unix.Mknod(file, unix.S_IFCHR|0o644, int(unix.Mkdev(1, 5))) }, ErrNotPlain}, // zero
		{"socket", func(file string) error { return unix.Mknod(file, unix.S_IFSOCK|0o644, 0) }, ErrNotPlain},
		{"folder", func(file string) error { return os.Mkdir(file, 0o755) }, ErrNotPlain},
		{"huge and sparse", func(file string) error {
			return errors.Join(os.WriteFile(file, nil, 0o644), os.Truncate(file, 1<<40))
		}, ErrTooLarge},
		{"nothing", func(string) error { return nil }, fs.ErrNotExist},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			if err := errors.Join(os.Mkdir(filepath.Join(root, "etc"), 0o755), os.Mkdir(filepath.Join(root, "proc"), 0o755),
				tc.make(filepath.Join(root, "etc/hosts"))); err != nil {
				t.Fatal(err)
			}
			pid, proc := inRoot(t, root), OpenProc("/proc")
			before := allocated()
			b, err := ReadInRoot(proc, pid, "etc/hosts", limit)
			if !errors.Is(err, tc.err) || len(b) > 0 {
				t.Errorf("%d bytes and error %v, want none and %v", len(b), err, tc.err)
			}
			if got := allocated() - before; got > 4*limit {
				t.Errorf("%d bytes of memory were taken, want at most %d", got, 4*limit)
			}
		})
	}
	t.Run("an ordinary one, by links within the root", func(t *testing.T) {
		root := t.TempDir()
		want := "198.18.0.7 scheduler\n"
		if err := errors.Join(os.Mkdir(filepath.Join(root, "etc"), 0o755), os.Mkdir(filepath.Join(root, "proc"), 0o755),
			os.WriteFile(filepath.Join(root, "etc/real"), []byte(want), 0o644),
			os.Symlink("/etc/real", filepath.Join(root, "etc/hosts"))); err != nil {
			t.Fatal(err)
		}
		if b, err := ReadInRoot(OpenProc("/proc"), inRoot(t, root), "etc/hosts", limit); err != nil || string(b) != want {
			t.Errorf("%q, %v; want %q", b, err, want)
		}
	})
}

// allocated is what was allocated so far, freed or not.
func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

func TestReadHasABound(t *testing.T) {
	tree := fstest.MapFS{"7/environ": {Data: bytes.Repeat([]byte("x"), 100)}}
	for _, tc := range []struct {
		most, want int
		err        error
	}{{100, 100, nil}, {99, 99, ErrTooLarge}, {0, 0, ErrTooLarge}} {
		b, err := ReadMemory(tree, 7, "environ", tc.most)
		if len(b) != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("at most %d: %d bytes, %v", tc.most, len(b), err)
		}
	}
	before := allocated()
	if b, err := ReadProc(os.DirFS("/dev"), "zero", limit); len(b) != limit || !errors.Is(err, ErrTooLarge) {
		t.Errorf("of an endless file: %d bytes, %v", len(b), err)
	}
	if got := allocated() - before; got > 16*limit {
		t.Errorf("%d bytes of memory were taken", got)
	}
}

func TestNames(t *testing.T) {
	dir := t.TempDir()
	for i := range 3000 {
		require.NoError(t, os.Mkdir(filepath.Join(dir, fmt.Sprint(i)), 0o755))
	}
	for name, proc := range map[string]fs.FS{"real": OpenProc(dir), "another": os.DirFS(dir)} {
		if names, err := ListNames(proc, ".", 3000); len(names) != 3000 || err != nil {
			t.Errorf("%s: %d names, %v", name, len(names), err)
		}
		if names, err := ListNames(proc, ".", 2999); len(names) != 2999 || !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s, one too many: %d names, %v", name, len(names), err)
		}
	}
}

// Reads that do not end are left, of one owner only some, and others go on; when
// they end at last, the owner is served again.
func TestGuardLeavesReadsThatDoNotEnd(t *testing.T) {
	g := newGuard(10 * time.Millisecond)
	end := make(chan struct{})
	begun := make(chan bool, 10)
	stuck := func() ([]byte, error) { <-end; return nil, nil }
	for range 10 {
		_, err := g.do("a", func() ([]byte, error) { begun <- true; return stuck() })
		if !errors.Is(err, ErrStuck) {
			t.Fatalf("a read that does not end: %v", err)
		}
	}
	for range stuckOfOwner {
		<-begun
	}
	g.patience = time.Minute
	if b, err := g.do("b", func() ([]byte, error) { return []byte("x"), nil }); err != nil || string(b) != "x" {
		t.Errorf("another owner: %q, %v", b, err)
	}
	for i := range stuckOfAll {
		g.patience = 0
		if _, err := g.do(strings.Repeat("o", i+1), stuck); !errors.Is(err, ErrStuck) {
			t.Fatal(err)
		}
	}
	if g.all != stuckOfAll {
		t.Errorf("%d reads are stuck, want %d", g.all, stuckOfAll)
	}
	close(end)
	if len(begun) > 0 {
		t.Errorf("%d reads of one owner more than %d were begun", len(begun), stuckOfOwner)
	}
	g.patience = time.Minute
	for { // until the reads that were let go have been noticed
		_, err := g.do("a", func() ([]byte, error) { return nil, nil })
		if err == nil {
			break
		}
		runtime.Gosched()
	}
}
