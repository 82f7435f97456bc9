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
	"github.com/psidecar/psidecar/internal/policy"
	"github.com/psidecar/psidecar/proxy/handover"
)

// A Process is one whose cgroup's connects go to the proxy.
type Process struct {
	Job string // its scheduler's address
	// Called is what the job is called as far as this process's word counts, and Wishes
	// what its owner asks for.
	Called string
	Wishes policy.Policy
	// Pending says that Job will be known later, when the process has met its
	// scheduler.
	Pending bool
	Cgroup  string // folder of a cgroup v2 mount
	// Netns is the file of its network namespace, /proc/PID/ns/net.
	Netns string
}

// place is what has listeners of its own.
type place struct {
	group redirect.GroupID
	netns uint64 // inode
}

// Reconcile brings redirections and listeners in line with the full list of
// processes. What cannot be served is left out and named in the error; the rest is
// done.
func (l *Listeners) Reconcile(all []Process) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	l.wanted = slices.Clone(all)
	err := l.reconcile()
	close(l.news)
	l.news = make(chan struct{})
	if !l.reconciled {
		l.reconciled = true
		l.sendToAll(handover.Message{Kind: handover.Complete}, nil)
	}
	return err
}

// reconcile opens and redirects what the present processes need, and closes the rest. A
// failure for one process does not keep others from being served. Without a proxy
// nothing is opened, since nobody would accept. The caller holds l.mu.
func (l *Listeners) reconcile() error {
	var failed error
	groups := map[string]bool{}
	places := map[place]bool{}
	meshes := map[uint64]bool{}
	joined, titles := wishesOf(l.wanted), map[titled]bool{}
	for i, p := range l.named() {
		id, err := l.group(p.Cgroup)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		groups[p.Cgroup] = true
		if len(l.proxies) == 0 && l.without == nil {
			continue // nobody would accept
		}
		own := l.wanted[i].Job // p.Job is empty where its cgroup has several
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

// named are the processes that are wanted, each with the job whose connections
// come from its cgroup: none where that may be several, or any.
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

// group has a cgroup's connects redirected.
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

// letGo detaches the groups that are not wanted any more, whoever attached
// them; but while processes live in one that fails closed it must go on.
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
		if l.groups[g.Cgroup] == g.ID {
			delete(l.groups, g.Cgroup)
		}
	}
	return failed
}

// populated reports whether processes live in a group's cgroup.
func populated(g redirect.Group) bool {
	if id, err := redirect.ID(g.Cgroup); err != nil || id != g.ID {
		return false
	}
	events, err := os.ReadFile(filepath.Join(g.Cgroup, "cgroup.events"))
	return err != nil || strings.Contains(string(events), "populated 1")
}

// listen opens the listeners for a process, where they are not open, and hands
// them to the proxies, after what its job, own, is called.
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
	if l.hasRoom() {
		if err := l.opts.Redirect.SetListener(o.cookie, id, o.ports()); err != nil {
			return at, errors.Join(err, o.close())
		}
	}
	l.open[at] = o
	l.hand(o)
	return at, nil
}

// hand gives listeners to the proxies, under new numbers.
func (l *Listeners) hand(o *opened) {
	for i := range o.sockets {
		l.nextID++
		o.sockets[i].id = l.nextID
		m, f := o.message(i)
		l.sendToAll(m, f)
	}
}

// close takes back what listen did. Connects go direct before the sockets
// close; what waits in their queues and was handed to no proxy is reset.
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
