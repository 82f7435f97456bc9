package redirect

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// A GroupID is the kernel's number of a cgroup, the inode of its folder.
type GroupID uint64

// A Policy says what happens to a group's connects.
type Policy struct {
	// FailClosed makes a connect that cannot be sent to the proxy fail instead of going direct.
	FailClosed bool
	// Loopback redirects connects to loopback addresses as well. A proxy in
	// another network namespace cannot reach those.
	Loopback bool
	// Spare lets connects go direct, except to where [Redirect.Take] says. A group that fails
	// closed spares none.
	Spare bool
}

// A Group is a cgroup whose processes' connects are redirected.
type Group struct {
	ID     GroupID
	Cgroup string // path at which it was attached
	Policy Policy
}

// Flags of a group in the map.
const (
	failClosed = 1 // FAIL_CLOSED in maps.h
	loopback   = 2 // LOOPBACK
	exempt     = 4 // EXEMPT
	spare      = 8 // SPARE
)

// groupHooks are the programs of a group in the order in which they are attached. The programs
// that rewrite come last: everything that a redirected connection relies on is in place by
// then.
var groupHooks = []hook{
	{"note_connects", ebpf.AttachCGroupSockOps},
	{"peer4", ebpf.AttachCgroupInet4GetPeername},
	{"peer6", ebpf.AttachCgroupInet6GetPeername},
	{"redirect4", ebpf.AttachCGroupInet4Connect},
	{"redirect6", ebpf.AttachCGroupInet6Connect},
}

// proxyHooks are the programs of the cgroup in which listeners are opened.
var proxyHooks = []hook{{"original_destination", ebpf.AttachCGroupGetsockopt}}

const (
	groupPrefix = "group-"
	proxyPrefix = "proxy-"
)

// ID returns the number of a cgroup, given by its path in a cgroup v2 mount.
func ID(cgroup string) (GroupID, error) {
	var s unix.Stat_t
	if err := unix.Stat(cgroup, &s); err != nil {
		return 0, fmt.Errorf("cgroup %s: %w", cgroup, err)
	}
	var f unix.Statfs_t
	if err := unix.Statfs(cgroup, &f); err != nil {
		return 0, fmt.Errorf("cgroup %s: %w", cgroup, err)
	}
	if f.Type != unix.CGROUP2_SUPER_MAGIC {
		return 0, fmt.Errorf("cgroup %s is not a directory in a cgroup v2 mount", cgroup)
	}
	return GroupID(s.Ino), nil
}

// Attach redirects the connects of the processes in a cgroup and in the cgroups below it, from
// now on. Sockets that are connected already are not affected. For a group that is attached
// already it replaces the programs by those of this version, and there is no moment without
// any. A group that fails closed, or spares connects, does so until [Redirect.SetPolicy] says
// otherwise, because an agent that restarts does not know yet why. No group may lie within another.
func (r *Redirect) Attach(cgroup string, p Policy) (GroupID, error) {
	path, err := filepath.Abs(cgroup)
	if err != nil {
		return 0, fmt.Errorf("cgroup %s: %w", cgroup, err)
	}
	id, err := ID(path)
	if err != nil {
		return 0, err
	}
	// From the check of other groups to the entry, nobody else may attach one.
	unlock, err := r.lock()
	if err != nil {
		return 0, err
	}
	defer unlock()
	if err := r.alone(id, path); err != nil {
		return 0, err
	}
	if err := r.pin(groupPrefix, id, path, groupHooks); err != nil {
		return 0, err
	}
	var before redirectGroup
	// Keys may still be displaced, and a connect that goes direct would read stale values.
	if r.maps["groups"].Lookup(uint64(id), &before) == nil {
		p.FailClosed = p.FailClosed || before.Flags&failClosed != 0
		p.Spare = p.Spare || before.Flags&spare != 0
	}
	// The programs of a new group find no entry until now, and let everything pass.
	return id, r.putGroup(id, path, p.flags())
}

// alone returns an error if another group contains the path or lies within it. A connect would
// be rewritten twice. Groups whose cgroup was removed do not count.
func (r *Redirect) alone(id GroupID, path string) error {
	groups, err := r.groups()
	if err != nil {
		return err
	}
	for other, g := range groups {
		o := cString(g.Path[:])
		if other != id && g.Flags&exempt == 0 && (within(path, o) || within(o, path)) && stands(other, o) {
			return fmt.Errorf("cgroup %s: %s is redirected already, and one of them lies in the other", path, o)
		}
	}
	return nil
}

// stands reports whether the path still belongs to that cgroup.
func stands(id GroupID, path string) bool {
	now, err := ID(path)
	return err == nil && now == id
}

// within reports whether path a is b or below it.
func within(a, b string) bool {
	return a == b || strings.HasPrefix(a, strings.TrimSuffix(b, "/")+"/")
}

// flags returns the policy as it is in the map.
func (p Policy) flags() (f uint32) {
	if p.FailClosed {
		f |= failClosed
	}
	if p.Loopback {
		f |= loopback
	}
	if p.Spare {
		f |= spare
	}
	return f
}

// AttachProxy answers queries for original destinations (SO_ORIGINAL_DST) on sockets of a
// cgroup. It must be the cgroup of the process that opens the listeners, whichever process
// accepts: an accepted socket belongs to the cgroup of its listener.
func (r *Redirect) AttachProxy(cgroup string) error {
	id, err := ID(cgroup)
	if err != nil {
		return err
	}
	unlock, err := r.lock()
	if err != nil {
		return err
	}
	defer unlock()
	return r.pin(proxyPrefix, id, cgroup, proxyHooks)
}

// putGroup writes a group's entry, by which its programs start to act. The path is for people
// and for letGo in agent/listeners.
func (r *Redirect) putGroup(id GroupID, path string, flags uint32) error {
	g := redirectGroup{Flags: flags}
	if len(path) >= len(g.Path) {
		return fmt.Errorf("cgroup %s: its path has more than %d characters", path, len(g.Path)-1)
	}
	for i := range len(path) {
		g.Path[i] = int8(path[i])
	}
	if err := r.maps["groups"].Put(uint64(id), g); err != nil {
		return fmt.Errorf("entering cgroup %s (4,096 are possible): %w", path, err)
	}
	return nil
}

// groups returns the entries of all groups, exempt cgroups included.
func (r *Redirect) groups() (map[GroupID]redirectGroup, error) {
	all := map[GroupID]redirectGroup{}
	var id uint64
	var g redirectGroup
	entries := r.maps["groups"].Iterate()
	for entries.Next(&id, &g) {
		all[GroupID(id)] = g
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("reading the groups: %w", err)
	}
	return all, nil
}

// Groups returns the groups that are attached, by whichever process, including those whose
// cgroup was removed since.
func (r *Redirect) Groups() ([]Group, error) {
	all, err := r.groups()
	if err != nil {
		return nil, err
	}
	var list []Group
	for id, g := range all {
		if g.Flags&exempt == 0 {
			list = append(list, Group{id, cString(g.Path[:]), policyOf(g.Flags)})
		}
	}
	return list, nil
}

// policyOf is the inverse of Policy.flags.
func policyOf(flags uint32) Policy {
	return Policy{FailClosed: flags&failClosed != 0, Loopback: flags&loopback != 0, Spare: flags&spare != 0}
}

// SetPolicy changes a group's policy, from the next connect on.
func (r *Redirect) SetPolicy(id GroupID, p Policy) error {
	unlock, err := r.lock()
	if err != nil {
		return err
	}
	defer unlock()
	var g redirectGroup
	if err := r.maps["groups"].Lookup(uint64(id), &g); err != nil {
		return fmt.Errorf("cgroup number %d is not redirected: %w", id, err)
	}
	g.Flags = p.flags()
	if err := r.maps["groups"].Put(uint64(id), g); err != nil {
		return fmt.Errorf("changing the policy of cgroup %s: %w", cString(g.Path[:]), err)
	}
	return nil
}

// Detach lets a group's connects go direct again. Connections through the proxy continue, but
// getpeername then shows the proxy's listener for them. What can be removed is removed even
// after an error. The error wraps fs.ErrNotExist if the group is not attached.
func (r *Redirect) Detach(id GroupID) error {
	unlock, err := r.lock()
	if err != nil {
		return err
	}
	defer unlock()
	// First, because it takes effect at once: without an entry the programs let everything
	// pass.
	err = r.maps["groups"].Delete(uint64(id))
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = fmt.Errorf("cgroup number %d is not redirected: %w", id, fs.ErrNotExist)
	}
	if _, gone := remove(filepath.Join(r.dir, groupPrefix+strconv.FormatUint(uint64(id), 10))); gone != nil {
		err = errors.Join(err, fmt.Errorf("removing the links of cgroup number %d: %w", id, gone))
	}
	err = errors.Join(err, removeKeys[redirectWay, uint64](r.maps[waysMap], func(w redirectWay) bool { return GroupID(w.Group) == id }))
	return errors.Join(err, removeKeys[redirectPlace, redirectListener](r.maps["listeners"], func(p redirectPlace) bool { return GroupID(p.Group) == id }))
}

// cString converts a C string of fixed size.
func cString(chars []int8) string {
	b := make([]byte, len(chars))
	for i, c := range chars {
		b[i] = byte(c)
	}
	if n := bytes.IndexByte(b, 0); n >= 0 {
		b = b[:n]
	}
	return string(b)
}
