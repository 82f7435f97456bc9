package redirect

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// DefaultDir is the default folder for pins.
const DefaultDir = "/sys/fs/bpf/psidecar"

// DefaultMark is the socket mark of the proxy's listeners and, where the proxy may set one, of
// its own connections. It spells psdc.
const DefaultMark = 0x70736463

// Options of a [Redirect]. The zero value is a good start.
type Options struct {
	// Dir is the folder in a BPF file system where everything is pinned; empty means
	// DefaultDir. If its parent is not in a BPF file system but is an empty folder, one is
	// mounted there.
	Dir string
	// Mark is the socket mark by which the programs know the proxy's sockets; 0 means
	// DefaultMark.
	Mark uint32
	// Sockets is how many redirected connections are remembered at a time, at about 250 bytes
	// of kernel memory each; 0 means 65,536. It applies to a state that is created, not to an
	// existing one.
	Sockets int
}

// normal returns the options with defaults filled in and an absolute folder, or an error about
// them.
func (o Options) normal() (Options, error) {
	if o.Dir == "" {
		o.Dir = DefaultDir
	}
	if o.Mark == 0 {
		o.Mark = DefaultMark
	}
	if o.Sockets == 0 {
		o.Sockets = 65536
	}
	if o.Sockets < 1024 || o.Sockets > 1<<22 {
		return o, fmt.Errorf("socket limit %d: want 1,024 to %d", o.Sockets, 1<<22)
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return o, fmt.Errorf("directory %s: %w", o.Dir, err)
	}
	o.Dir = dir
	return o, nil
}

// mapNames are the maps of redirect.c, pinned under their names.
var mapNames = []string{"settings", "groups", "listeners", "sockets", endedMap, "destinations", "exclusions", waysMap, "counts"}

// Maps that states of earlier versions do not have.
const (
	endedMap = "ended"
	waysMap  = "ways"
)

// unfinished is the prefix of folders that are not complete. A BPF file system allows no dots
// in names, so they cannot be hidden files.
const unfinished = "unfinished-"

// A Redirect is the pinned state: the maps shared by all groups, and the groups' links. Several
// processes may have it open; changes are serialized by a file lock. Its methods may be called
// from any goroutine, but not during or after Close.
type Redirect struct {
	dir  string
	maps map[string]*ebpf.Map
	spec *ebpf.CollectionSpec
}

// Open opens the state that is pinned in the folder, or creates it. It needs CAP_BPF and
// CAP_NET_ADMIN, and CAP_SYS_ADMIN if a BPF file system has to be mounted; the error names a
// right that is missing. Before that it removes what an earlier process left unfinished. It
// waits for other processes that are changing the state.
func Open(o Options) (*Redirect, error) {
	o, err := o.normal()
	if err != nil {
		return nil, err
	}
	if err := rlimit.RemoveMemlock(); err != nil { // maps count before 5.11
		return nil, fmt.Errorf("raising the memlock limit: %w", err)
	}
	if err := mount(filepath.Dir(o.Dir)); err != nil {
		return nil, err
	}
	spec, err := loadRedirect()
	if err != nil {
		return nil, fmt.Errorf("reading the BPF object: %w", err)
	}
	spec.Maps["sockets"].MaxEntries = uint32(o.Sockets)
	spec.Maps["destinations"].MaxEntries = uint32(o.Sockets)
	unlock, err := lock(filepath.Dir(o.Dir))
	if err != nil {
		return nil, err
	}
	defer unlock()
	// Under the lock nobody is working on what is unfinished, so whoever began it is gone.
	if err := sweep(o.Dir); err != nil {
		return nil, err
	}
	r := &Redirect{dir: o.Dir, maps: map[string]*ebpf.Map{}, spec: spec}
	if _, err = os.Stat(o.Dir); errors.Is(err, fs.ErrNotExist) {
		err = r.create()
	} else if err == nil {
		err = r.load()
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if err := r.setMark(o.Mark); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// create creates the maps and pins them, all or none: the folder gets its name when it is
// complete.
func (r *Redirect) create() (err error) {
	parent, name := filepath.Split(r.dir)
	temporary := filepath.Join(parent, unfinished+name)
	if err := os.Mkdir(temporary, 0o700); err != nil {
		return fmt.Errorf("creating a directory for pinned maps: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(temporary))
		}
	}()
	for _, name := range mapNames {
		m, err := ebpf.NewMap(r.spec.Maps[name])
		if err != nil {
			return fmt.Errorf("making map %s: %w", name, err)
		}
		r.maps[name] = m
		if err := m.Pin(filepath.Join(temporary, name)); err != nil {
			return fmt.Errorf("pinning map %s: %w", name, err)
		}
	}
	if err := os.Rename(temporary, r.dir); err != nil {
		return fmt.Errorf("renaming the directory of pinned maps: %w", err)
	}
	return nil
}

// addMap creates and pins a map that an existing state does not have.
func (r *Redirect) addMap(name string) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(r.spec.Maps[name])
	if err != nil {
		return nil, err
	}
	if err := m.Pin(filepath.Join(r.dir, name)); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// load opens the pinned maps and checks that their layouts are those of this version's
// programs.
func (r *Redirect) load() error {
	for _, name := range mapNames {
		m, err := ebpf.LoadPinnedMap(filepath.Join(r.dir, name), nil)
		if (name == endedMap || name == waysMap) && errors.Is(err, fs.ErrNotExist) {
			m, err = r.addMap(name)
		}
		if err != nil {
			return fmt.Errorf("%s is not the state of this version (psidecar unload removes it): map %s: %w", r.dir, name, err)
		}
		r.maps[name] = m
		want := r.spec.Maps[name]
		want.MaxEntries = m.MaxEntries() // sizes may differ: they were chosen by whoever created the state
		if err := want.Compatible(m); err != nil {
			return fmt.Errorf("%s is not the state of this version (psidecar unload removes it): map %s: %w", r.dir, name, err)
		}
	}
	return nil
}

// setMark sets the mark by which the programs know the proxy's sockets. A group's programs read
// it at each connect.
func (r *Redirect) setMark(mark uint32) error {
	return r.setting(func(s *redirectSettings) { s.Mark = mark })
}

// setting changes the settings. The caller holds the file lock, since this reads, changes and
// writes.
func (r *Redirect) setting(change func(*redirectSettings)) error {
	var s redirectSettings
	if err := r.maps["settings"].Lookup(uint32(0), &s); err != nil {
		return fmt.Errorf("reading the settings: %w", err)
	}
	change(&s)
	if err := r.maps["settings"].Put(uint32(0), s); err != nil {
		return fmt.Errorf("writing the settings: %w", err)
	}
	return nil
}

// Mark returns the socket mark of the proxy's listeners.
func (r *Redirect) Mark() (uint32, error) {
	var s redirectSettings
	if err := r.maps["settings"].Lookup(uint32(0), &s); err != nil {
		return 0, fmt.Errorf("reading the settings: %w", err)
	}
	return s.Mark, nil
}

// Close releases what this process holds. Pinned programs go on working; see [Unload].
func (r *Redirect) Close() error {
	var failed error
	for name, m := range r.maps {
		if err := m.Close(); err != nil {
			failed = errors.Join(failed, fmt.Errorf("closing map %s: %w", name, err))
		}
	}
	clear(r.maps)
	return failed
}

// lock makes this process the only one that changes pinned state in a folder, and waits until
// it is. The lock is an flock on the folder, which the kernel releases if the process is
// killed.
func lock(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("locking the pinned state: %w", err)
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", dir, err), f.Close())
	}
	return func() { f.Close() }, nil // which unlocks; nothing was written
}

// lock locks the state. The lock is on the parent, since the state's own folder may not exist
// yet, or no longer.
func (r *Redirect) lock() (unlock func(), err error) { return lock(filepath.Dir(r.dir)) }

// sweep removes what a process that was killed left unfinished: a state, or groups in it. None
// of it has taken effect. The caller holds the lock.
func sweep(dir string) error {
	parent, name := filepath.Split(dir)
	if err := os.RemoveAll(filepath.Join(parent, unfinished+name)); err != nil {
		return fmt.Errorf("removing an unfinished state: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("reading the pinned state: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), unfinished) {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return fmt.Errorf("removing an unfinished group: %w", err)
			}
		}
	}
	return nil
}

// mountSource marks a BPF file system in the mount table as mounted by [Open], so that [Unload]
// may unmount it.
const mountSource = "psidecar"

// bpfMagic is the type of a BPF file system in statfs.
const bpfMagic = 0xcafe4a11 // BPF_FS_MAGIC

// mount makes sure that a folder is in a BPF file system, mounting one if the folder is empty.
func mount(dir string) error {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return fmt.Errorf("looking for a BPF file system at %s: %w", dir, err)
	}
	if uint32(s.Type) == bpfMagic {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("looking for a BPF file system at %s: %w", dir, err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s is not in a BPF file system, and not empty: use a directory in a BPF file system (mount -t bpf bpf /sys/fs/bpf)", dir)
	}
	if err := unix.Mount(mountSource, dir, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
		return fmt.Errorf("mounting a BPF file system (mount -t bpf bpf %s): %w", dir, err)
	}
	return nil
}
