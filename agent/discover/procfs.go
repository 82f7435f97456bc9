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

// ErrTooLarge says that a file or directory exceeds the caller's limit. The part within the
// limit is returned with it.
var ErrTooLarge = errors.New("more than is read")

// ErrNotPlain says that a file is not a regular one on an ordinary file system.
var ErrNotPlain = errors.New("not a regular file of an ordinary file system")

// A ProcFS is a /proc directory of this host. Reads that another process can stall go through
// its guard. It is safe for concurrent use.
type ProcFS struct {
	fs.FS
	dir   string
	guard *guard
}

// OpenProc returns the /proc directory at dir.
func OpenProc(dir string) *ProcFS {
	return &ProcFS{FS: os.DirFS(dir), dir: dir, guard: newGuard(patience)}
}

// ReadLink returns the target of a link. The kernel makes up the targets in /proc/PID/fd and
// /proc/PID/ns itself, so the process cannot stall this.
func (p *ProcFS) ReadLink(name string) (string, error) { return fs.ReadLink(p.FS, name) }

// Lstat describes a file without following a link.
func (p *ProcFS) Lstat(name string) (fs.FileInfo, error) { return fs.Lstat(p.FS, name) }

// ReadProc returns the first most bytes of a file whose content the kernel makes from its own
// memory, with [ErrTooLarge] if there are more. Only such files are safe to read without a
// guard.
func ReadProc(proc fs.FS, name string, most int) ([]byte, error) {
	f, err := proc.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readMost(f, name, most)
}

// readMost reads one byte more than most to tell whether there are more.
func readMost(r io.Reader, name string, most int) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, int64(most)+1))
	if err == nil && len(b) > most {
		return b[:most], fmt.Errorf("%s: %w: at most %d bytes", name, ErrTooLarge, most)
	}
	return b, err
}

// ReadMemory is like [ReadProc] for a file that the kernel copies from a process's memory:
// environ or cmdline. The process may have mapped a file there whose pages never arrive; the
// error is then [ErrStuck], after at most 2 s.
func ReadMemory(proc fs.FS, pid int, name string, most int) (b []byte, err error) {
	file := fmt.Sprintf("%d/%s", pid, name)
	p, ok := proc.(*ProcFS)
	if !ok {
		return ReadProc(proc, file, most)
	}
	return p.guard.do(p.owner(pid), func() ([]byte, error) { return ReadProc(proc, file, most) })
}

// ReadInRoot returns the first most bytes of a file as process pid sees it. name is relative to
// the process's root directory, and symbolic links are resolved below that root. Files other
// than regular ones on ordinary file systems are not opened ([ErrNotPlain]). Like [ReadMemory]
// it may fail with [ErrStuck].
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

// ListNames returns up to most names in a directory, in no particular order, with [ErrTooLarge]
// if there are more. It asks for names alone: fs.ReadDir would stat every entry, which for
// /proc costs more than the listing.
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

// namesAtOnce is how many names are read at a time.
const namesAtOnce = 1024

// owner returns the key under which a process's stuck reads are counted: its cgroup and user. A
// process can fork to get any number of PIDs, but cannot choose these freely.
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
