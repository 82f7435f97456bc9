package redirect

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Unload detaches all programs that are pinned in a folder (empty: [DefaultDir]) and removes
// all pins, whichever version made them. It returns the paths of the pins that it removed, also
// after an error. If there is nothing it does nothing. A Redirect that is still open keeps its
// maps until it is closed, without effect. A BPF file system that [Open] mounted is unmounted
// if nothing else is in it.
func Unload(dir string) (removed []string, err error) {
	if dir == "" {
		dir = DefaultDir
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, fmt.Errorf("directory %s: %w", dir, err)
	}
	parent := filepath.Dir(dir)
	var s unix.Statfs_t
	if err := unix.Statfs(parent, &s); errors.Is(err, fs.ErrNotExist) || err == nil && uint32(s.Type) != bpfMagic {
		return nil, nil // nothing can be pinned there
	} else if err != nil {
		return nil, fmt.Errorf("looking at %s: %w", parent, err)
	}
	unlock, err := lock(parent)
	if err != nil {
		return nil, err
	}
	defer func() {
		unlock()
		if err == nil {
			err = unmount(parent)
		}
	}()
	for _, d := range []string{dir, filepath.Join(parent, unfinished+filepath.Base(dir))} {
		gone, err := remove(d)
		removed = append(removed, gone...)
		if err != nil {
			return removed, fmt.Errorf("removing pinned objects in %s: %w", d, err)
		}
	}
	return removed, nil
}

// unmount unmounts the BPF file system at a folder if Open mounted it and it is empty.
func unmount(dir string) error {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return fmt.Errorf("checking the mount of %s: %w", dir, err)
	}
	ours := fmt.Sprintf("%s %s bpf ", mountSource, dir)
	if !strings.Contains("\n"+string(mounts), "\n"+ours) {
		return nil
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("listing the remaining files in %s: %w", dir, err)
	}
	for _, e := range left {
		if e.Name() != "maps.debug" && e.Name() != "progs.debug" { // the kernel's own
			return nil
		}
	}
	switch err := unix.Unmount(dir, 0); {
	case errors.Is(err, unix.EBUSY): // another process is about to use it
	case errors.Is(err, unix.EINVAL): // another process has just unmounted it
	case err != nil:
		return fmt.Errorf("unmounting the BPF file system at %s: %w", dir, err)
	}
	return nil
}

// remove removes a folder of pins with everything in it. Connect hooks are detached first,
// because redirected connections rely on the others, and maps go last.
func remove(dir string) (removed []string, err error) {
	var paths []string
	err = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		paths = append(paths, path)
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(paths, func(a, b string) int { return rank(a) - rank(b) })
	for _, path := range paths {
		// Folders go at the end, when they are empty.
		if info, err := os.Lstat(path); err != nil || info.IsDir() {
			continue
		}
		if err := detach(path); err != nil {
			return removed, err
		}
		if err := os.Remove(path); err != nil {
			return removed, err
		}
		removed = append(removed, path)
	}
	return removed, os.RemoveAll(dir)
}

// detach detaches the program of a pinned link at once. Removing the last pin of a link would
// make the kernel detach it only some time later. Pins other than links are left alone.
func detach(path string) error {
	if slices.Contains(mapNames, filepath.Base(path)) {
		return nil
	}
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return nil // a map of another version
	}
	if err := errors.Join(l.Detach(), l.Close()); err != nil {
		return fmt.Errorf("detaching %s: %w", path, err)
	}
	return nil
}

// rank orders pins for removal.
func rank(path string) int {
	switch name := filepath.Base(path); {
	case name == "redirect4" || name == "redirect6":
		return 0
	case slices.Contains(mapNames, name):
		return 2
	}
	return 1
}
