package discover

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// ErrTooLarge says that there is more of a file, or in a directory, than the
// caller takes. What fits is returned with it.
var ErrTooLarge = errors.New("more than is read")

// ErrNotPlain says that a file is none that lies on a disk.
var ErrNotPlain = errors.New("not a regular file of an ordinary file system")

// A ProcFS is a /proc directory.
type ProcFS struct {
	fs.FS
	dir   string
	guard *guard
}

// OpenProc returns the /proc directory at dir.
func OpenProc(dir string) *ProcFS {
	return &ProcFS{FS: os.DirFS(dir), dir: dir, guard: newGuard(patience)}
}

// ReadLink says what a link is to. The kernel makes that up for those of
// /proc/PID/fd and /proc/PID/ns: nothing of the process is asked.
func (p *ProcFS) ReadLink(name string) (string, error) { return fs.ReadLink(p.FS, name) }

// Lstat describes a file, not what a link is to.
func (p *ProcFS) Lstat(name string) (fs.FileInfo, error) { return fs.Lstat(p.FS, name) }

// ReadProc returns a file that the kernel makes from its own memory, up to most
// bytes; with [ErrTooLarge] there is more.
func ReadProc(proc fs.FS, name string, most int) ([]byte, error) {
	f, err := proc.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readMost(f, name, most)
}

func readMost(r io.Reader, name string, most int) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, int64(most)+1))
	if err == nil && len(b) > most {
		return b[:most], fmt.Errorf("%s: %w: at most %d bytes", name, ErrTooLarge, most)
	}
	return b, err
}

// ReadMemory is like [ReadProc] for a file that the kernel copies from the memory
// of process pid: its environment, its arguments. The process may have mapped a
// file there whose read never ends: [ErrStuck].
func ReadMemory(proc fs.FS, pid int, name string, most int) (b []byte, err error) {
	file := fmt.Sprintf("%d/%s", pid, name)
	p, ok := proc.(*ProcFS)
	if !ok {
		return ReadProc(proc, file, most)
	}
	return p.guard.do(p.owner(pid), func() ([]byte, error) { return ReadProc(proc, file, most) })
}

// ReadInRoot returns a file as process pid sees it: name is a path below its root
// directory. Symbolic links stay below that root. Anything but a regular file of an
// ordinary file system is not opened at all.
func ReadInRoot(proc fs.FS, pid int, name string, most int) ([]byte, error) {
	p, ok := proc.(*ProcFS)
	if !ok {
		return ReadProc(proc, fmt.Sprintf("%d/root/%s", pid, name), most)
	}
	return p.guard.do(p.owner(pid), func() ([]byte, error) {
		f, err := openInRoot(fmt.Sprintf("%s/%d/root", p.dir, pid), name, most)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return readMost(f, name, most)
	})
}

// ListNames returns the names in a directory, unordered, at most as many as asked
// for; with [ErrTooLarge] there are more.
func ListNames(proc fs.FS, dir string, most int) ([]string, error) {
	p, ok := proc.(*ProcFS)
	if !ok {
		entries, err := fs.ReadDir(proc, dir)
		var names []string
		for _, e := range entries[:min(len(entries), most)] {
			names = append(names, e.Name())
		}
		if err == nil && len(entries) > most {
			err = fmt.Errorf("%s: %w: at most %d names", dir, ErrTooLarge, most)
		}
		return names, err
	}
	d, err := os.Open(filepath.Join(p.dir, dir))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var names []string
	for len(names) <= most {
		some, err := d.Readdirnames(namesAtOnce)
		names = append(names, some...)
		if errors.Is(err, io.EOF) {
			return names, nil
		}
		if err != nil {
			return names, err
		}
	}
	return names[:most], fmt.Errorf("%s: %w: at most %d names", dir, ErrTooLarge, most)
}

// namesAtOnce is how many names are asked for at a time.
const namesAtOnce = 1024

// owner returns whose process it is, as far as stuck reads are counted: its
// cgroup and user, which it cannot choose freely as it can its number.
func (p *ProcFS) owner(pid int) string {
	group, err := ReadProc(p, fmt.Sprintf("%d/cgroup", pid), maxCgroups)
	if err != nil {
		group = nil
	}
	user := uint32(0)
	if info, err := os.Stat(fmt.Sprintf("%s/%d", p.dir, pid)); err == nil {
		if s, ok := info.Sys().(*syscall.Stat_t); ok {
			user = s.Uid
		}
	}
	return fmt.Sprintf("%d %s", user, group)
}

// maxCgroups bounds the bytes read of /proc/PID/cgroup: some 16 lines with a path.
const maxCgroups = 64 << 10
