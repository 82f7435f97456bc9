package redirect

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// A hook is a program of redirect.c and the hook that it is attached to.
type hook struct {
	program string
	attach  ebpf.AttachType
}

// pin attaches programs to a cgroup and pins their links in a folder named after it, all or
// none. If the folder exists, it replaces the programs behind the links.
//
// The folder is built under a temporary name and renamed when it is complete, so that a process
// that is killed in between leaves nothing that looks complete. The links exist by then and
// act, but without the group's entry in the map they let everything pass.
func (r *Redirect) pin(prefix string, id GroupID, path string, hooks []hook) (err error) {
	name := prefix + strconv.FormatUint(uint64(id), 10)
	dir := filepath.Join(r.dir, name)
	programs, err := r.programs(id, hooks)
	if err != nil {
		return err
	}
	defer programs.Close()
	// An earlier process has attached the group, perhaps of another version.
	if _, err := os.Stat(dir); err == nil {
		return replace(dir, programs, hooks)
	}
	temporary := filepath.Join(r.dir, unfinished+name)
	if err := os.Mkdir(temporary, 0o700); err != nil {
		return fmt.Errorf("creating a directory for pinned links: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(temporary))
		}
	}()
	for _, h := range hooks {
		l, err := link.AttachCgroup(link.CgroupOptions{Path: path, Attach: h.attach, Program: programs.Programs[h.program]})
		if err != nil {
			return fmt.Errorf("attaching %v to cgroup %s: %w", h.attach, path, err)
		}
		err = errors.Join(l.Pin(filepath.Join(temporary, h.program)), l.Close())
		if err != nil {
			return fmt.Errorf("pinning %v of cgroup %s: %w", h.attach, path, err)
		}
	}
	if err := os.Rename(temporary, dir); err != nil {
		return fmt.Errorf("renaming the directory of cgroup %s: %w", path, err)
	}
	return nil
}

// replace exchanges the programs behind pinned links. Each exchange is atomic in the kernel. If
// it fails in between, programs of two versions run side by side, which works as long as the
// maps are compatible.
func replace(dir string, programs *ebpf.Collection, hooks []hook) error {
	for _, h := range hooks {
		l, err := link.LoadPinnedLink(filepath.Join(dir, h.program), nil)
		if err != nil {
			return fmt.Errorf("opening the pinned link %s: %w", h.program, err)
		}
		if err := errors.Join(l.Update(programs.Programs[h.program]), l.Close()); err != nil {
			return fmt.Errorf("replacing the program of link %s: %w", filepath.Join(dir, h.program), err)
		}
	}
	return nil
}

// programs loads a copy of the programs for one cgroup, with the shared maps. Each cgroup has a
// copy of its own because its number is a constant in it: the hooks do not tell a program to
// which cgroup it is attached, only in which one the process is.
func (r *Redirect) programs(id GroupID, hooks []hook) (*ebpf.Collection, error) {
	spec := r.spec.Copy()
	wanted := map[string]*ebpf.ProgramSpec{}
	for _, h := range hooks {
		wanted[h.program] = spec.Programs[h.program]
	}
	spec.Programs = wanted
	var refuseWith uint32 // without bpf_set_retval the kernel returns EPERM
	if features.HaveProgramHelper(ebpf.CGroupSockAddr, asm.FnSetRetval) == nil {
		refuseWith = uint32(unix.ECONNREFUSED)
	}
	if err := errors.Join(spec.Variables["group_id"].Set(uint64(id)), spec.Variables["refuse_with"].Set(refuseWith)); err != nil {
		return nil, fmt.Errorf("setting the constants of the BPF object: %w", err)
	}
	for _, name := range mapNames {
		// A replacement must have the size that the program was declared with, and sizes are
		// those of whoever created the state.
		spec.Maps[name].MaxEntries = r.maps[name].MaxEntries()
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: r.maps})
	if err != nil {
		return nil, fmt.Errorf("loading the redirecting programs: %w", err)
	}
	return c, nil
}
