package listeners

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/psidecar/psidecar/bpf/redirect"
	"github.com/psidecar/psidecar/internal/handover"
	"github.com/psidecar/psidecar/internal/policy"
)

// A Process is a process of a job, to be served: the connects of its cgroup go to the proxy.
type Process struct {
	Job string // its scheduler's address; empty while Pending
	// Called is the name that this process claims for the job, and Wishes what its owner asks
	// for. Both count for the process's own cgroup only.
	Called string
	Wishes policy.Policy
	// Pending is set until the process has met its scheduler, which then gives Job. Its
	// connects are redirected already: they may be the job's first.
	Pending bool
	Cgroup  string // folder of a cgroup v2 mount
	// Netns is the file of its network namespace, /proc/PID/ns/net.
	Netns string
}

// place is the key of a pair of listeners. Listeners are per network namespace because loopback
// is, and per cgroup so that a connection's listener says which job it belongs to.
type place struct {
	group redirect.GroupID
	netns uint64 // inode
}

// Reconcile brings redirections and listeners in line with the full list of processes;
// processes that are not in all are no longer served. It copies all. Processes that cannot be
// served are named in the error, and the rest is served regardless. It blocks while sockets are
// opened in other namespaces, with the lock held, so proxies see one consistent change.
func (l *Listeners) Reconcile(all []Process) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	l.wanted = slices.Clone(all)
	err := l.reconcile()
	// Queries that wait for an unknown listener's process look again now.
	close(l.news)
	l.news = make(chan struct{})
	// Only now is the list of listeners whole: proxies may drop those of an earlier agent.
	if !l.reconciled {
		l.reconciled = true
		l.sendToAll(handover.Message{Kind: handover.Complete}, nil)
	}
	return err
}

// reconcile opens what the processes in l.wanted need and closes the rest. A failure for one
// process does not keep others from being served. Without a proxy, and with its grace period
// over, groups stay attached but no listener is opened, since nobody would accept. The caller
// holds l.mu.
func (l *Listeners) reconcile() error {
	var failed error
	groups := map[string]bool{}
	places := map[place]bool{}
	meshes := map[uint64]bool{}
	asks := map[string]bool{} // cgroups for which more than the default is asked
	for _, p := range l.wanted {
		w := p.Wishes
		asks[p.Cgroup] = asks[p.Cgroup] || w.Codec != "" && w.Codec != "auto" || w.Threshold != "" || w.Aggregate == "host"
	}
	joined, titles := wishesOf(l.wanted), map[titled]bool{}
	for i, p := range l.named() {
		id, err := l.group(p.Cgroup)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		groups[p.Cgroup] = true
		// Before there are listeners, so that nothing is redirected that can be spared.
		failed = errors.Join(failed, l.spare(id, !asks[p.Cgroup]))
		if len(l.proxies) == 0 && l.without == nil {
			continue // nobody would accept
		}
		own := l.wanted[i].Job // the process's own job; p.Job is empty where its cgroup has several
		at, err := l.listen(p, id, own, joined[group{p.Cgroup, own}])
		if errors.Is(err, errEnded) {
			continue
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("job %s, cgroup %s: %w", p.Job, p.Cgroup, err))
			continue
		}
		places[at] = true
		titles[titled{at, own}] = true
		if err := l.listenMesh(p, at.netns, meshes); err != nil {
			failed = errors.Join(failed, fmt.Errorf("job %s: %w", p.Job, err))
		}
	}
	l.dropTitles(titles)
	failed = errors.Join(failed, l.closeMeshes(meshes))
	for at := range l.open {
		if !places[at] {
			failed = errors.Join(failed, l.close(at))
		}
	}
	return errors.Join(failed, l.letGo(groups))
}

// named returns l.wanted with each process's job replaced by the one that its listener can
// stand for. A listener serves a whole cgroup in a namespace, so where processes of several
// jobs share a cgroup the job is left empty and the proxy learns it from the traffic. A pending
// process takes the job of the others in its cgroup. Indexes are those of l.wanted. The caller
// holds l.mu.
func (l *Listeners) named() []Process {
	jobs := map[string]string{}
	for _, p := range l.wanted {
		job, several := jobs[p.Cgroup]
		switch {
		case p.Pending:
		case several && job != p.Job:
			jobs[p.Cgroup] = ""
		default:
			jobs[p.Cgroup] = p.Job
		}
	}
	all := slices.Clone(l.wanted)
	for i := range all {
		if job, known := jobs[all[i].Cgroup]; known {
			all[i].Job, all[i].Pending = job, false
		}
	}
	return all
}

// group redirects a cgroup's connects, unless that is done, and returns its id. A cgroup that
// was removed and made again under the same path has another id and is attached again. The
// caller holds l.mu.
func (l *Listeners) group(cgroup string) (redirect.GroupID, error) {
	if id, ok := l.groups[cgroup]; ok {
		if now, err := redirect.ID(cgroup); err == nil && now == id {
			return id, nil
		}
	}
	id, err := l.opts.Redirect.Attach(cgroup, redirect.Policy{})
	if err != nil {
		return 0, fmt.Errorf("redirecting: %w", err)
	}
	l.groups[cgroup] = id
	l.log.Info("redirecting", "cgroup", cgroup)
	return id, nil
}

// letGo detaches the groups that are not wanted, including those that an earlier agent
// attached. A group that fails closed stays attached as long as processes live in it: detaching
// it would let their connects go direct past displaced keys. The caller holds l.mu.
func (l *Listeners) letGo(wanted map[string]bool) error {
	groups, err := l.opts.Redirect.Groups()
	if err != nil {
		return err
	}
	var failed error
	for _, g := range groups {
		if id, ok := l.groups[g.Cgroup]; wanted[g.Cgroup] && ok && id == g.ID || g.Policy.FailClosed && populated(g) {
			continue
		}
		failed = errors.Join(failed, l.opts.Redirect.Detach(g.ID))
		delete(l.spared, g.ID)
		delete(l.bypassed, g.ID)
		if l.groups[g.Cgroup] == g.ID {
			delete(l.groups, g.Cgroup)
		}
	}
	return failed
}

// populated reports whether processes live in a group's cgroup or below it. If that cannot be
// read it assumes that they do.
func populated(g redirect.Group) bool {
	// Gone, or another cgroup of that path.
	if id, err := redirect.ID(g.Cgroup); err != nil || id != g.ID {
		return false
	}
	events, err := os.ReadFile(filepath.Join(g.Cgroup, "cgroup.events"))
	return err != nil || strings.Contains(string(events), "populated 1")
}

// listen opens the listeners for a process's place, unless they are open, and hands them to the
// proxies, preceded by the title of the process's own job. An open listener whose job was
// unknown is handed over again once it is known. The error is errEnded if the process is gone.
// The caller holds l.mu.
func (l *Listeners) listen(p Process, id redirect.GroupID, own string, w wishes) (place, error) {
	ns, inode, err := openNetns(p.Netns)
	if err != nil {
		return place{}, err
	}
	defer ns.Close()
	at := place{id, inode}
	if own != "" {
		l.title(titled{at, own}, w)
	}
	if o := l.open[at]; o != nil {
		if !p.Pending && (o.pending || o.job != p.Job) { // handed over again, with the name
			o.job, o.pending = p.Job, false
			l.hand(o)
		}
		return at, nil
	}
	o, err := openIn(ns, l.mark, anyLoopback4, anyLoopback6)
	if err != nil {
		return at, err
	}
	o.job, o.pending, o.group, o.netns = p.Job, p.Pending, uint64(id), inode
	// The sockets listen before the kernel redirects to them. A connect in between goes direct,
	// and none is refused.
	if l.hasRoom(id) {
		if err := l.opts.Redirect.SetListener(o.cookie, id, o.ports()); err != nil {
			return at, errors.Join(err, o.close())
		}
		o.steered = true
	}
	l.open[at] = o
	l.hand(o)
	return at, nil
}

// hand sends listeners to all proxies under new ids, so that a Withdrawn message still under
// way for an old id cannot hit them. The caller holds l.mu.
func (l *Listeners) hand(o *opened) {
	closed := l.closedCgroups()
	for i := range o.sockets {
		l.nextID++
		o.sockets[i].id = l.nextID
		m, f := o.message(i, closed)
		l.sendToAll(m, f)
	}
}

// close undoes listen. The redirection goes first, so that no connect reaches a closed socket.
// Connects in the backlogs are reset if no proxy has a copy of the listener to accept them;
// otherwise the proxies accept them until they read Withdrawn. The caller holds l.mu.
func (l *Listeners) close(at place) error {
	o := l.open[at]
	delete(l.open, at)
	err := l.opts.Redirect.RemoveListener(o.cookie, at.group)
	for _, s := range o.sockets {
		l.sendToAll(handover.Message{Kind: handover.Withdrawn, ID: s.id}, nil)
		if len(l.proxies) == 0 {
			err = errors.Join(err, s.resetWaiting())
		}
	}
	return errors.Join(err, o.close())
}
