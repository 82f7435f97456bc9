package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/agent/discover"
	"github.com/psidecar/psidecar/agent/listeners"
	"github.com/psidecar/psidecar/bpf/redirect"
)

// InterceptOptions say which connects are redirected, and how the proxy gets its
// listeners.
type InterceptOptions struct {
	Dir string // folder in a BPF file system in which the programs are pinned
	// Socket is the unix socket at which the proxy gets its listeners; empty: it is in
	// this process and calls [Interception.Connect].
	Socket string
	UID    int // user that the proxy runs as, besides root and this process's own
	// Grace is how long connections wait for another proxy when one has gone, before
	// they go direct; HangAfter how long a proxy may leave questions unanswered before
	// it is killed, 0: it never is.
	Grace, HangAfter time.Duration
	MeshPort         uint16   // opened for the proxy in jobs' network namespaces; 0: not
	Exclude          []uint16 // ports whose connections are never redirected
	Adopt            bool     // connections that went past the proxy are re-established (agent/daemon)
}

// Interception has jobs' connects redirected to the host's proxy while an agent runs.
// [Intercept] makes one. Its methods may be called from any goroutine; [Interception.Own]
// before the agent runs.
type Interception struct {
	dir       string
	redirect  *redirect.Redirect
	listeners *listeners.Listeners
	found     chan *discover.Snapshot // the latest
	ended     chan lastPush           // for the proxies
	adoption  *adoption               // nil: connections stay as they are
	// own, where not nil, knows the sockets of a proxy in this process.
	own func(cookie uint64, local, peer netip.AddrPort) bool
}

// Intercept loads the programs and maps that redirect connects.
func Intercept(o InterceptOptions) (_ *Interception, err error) {
	var exclusions []redirect.Exclusion
	for _, port := range o.Exclude {
		exclusions = append(exclusions, redirect.Exclusion{Port: port})
	}
	i := &Interception{dir: o.Dir, found: make(chan *discover.Snapshot, 1), ended: make(chan lastPush, mostEnded)}
	if i.redirect, err = redirect.Open(redirect.Options{Dir: o.Dir}); err != nil {
		return nil, fmt.Errorf("%w (psidecar doctor tells what is missing)", err)
	}
	err = i.redirect.SetExclusions(exclusions)
	if err == nil {
		i.listeners, err = listeners.New(listeners.Options{Redirect: i.redirect, Socket: o.Socket, NoSocket: o.Socket == "", UID: o.UID, Grace: o.Grace, HangAfter: o.HangAfter, MeshPort: o.MeshPort})
	}
	if err != nil {
		return nil, errors.Join(err, i.redirect.Close())
	}
	if o.Adopt {
		i.adoption = &adoption{listeners: i.listeners, port: o.MeshPort}
	}
	return i, nil
}

// tellAgent has the agent say what it finds, and ask where connections go.
func (i *Interception) tellAgent(o *agent.Options) {
	// Answers of other hosts come from the proxy, over the loopback device.
	o.Capture.IngressLoopback = true
	o.Found = i.keepSnapshot
	o.Route = i.route
	o.LastPush = i.lastPush
	o.Carried.Proxies = i.listeners.Proxies
	if o.Saved == nil {
		o.Saved = i.listeners.Carried
	}
	o.Collectors = append(o.Collectors, i.listeners)
	if i.adoption != nil {
		i.adoption.tellAgent(o)
	}
}

// Mark returns the SO_MARK of sockets that are never redirected, for those of this
// process: it may share a cgroup with a job.
func (i *Interception) Mark() (uint32, error) { return i.redirect.Mark() }

// Own says how the sockets of a proxy in this process are known.
func (i *Interception) Own(owns func(cookie uint64, local, peer netip.AddrPort) bool) { i.own = owns }

// Connect returns the proxy's end of a connection by which it gets its listeners, for
// a proxy in this process: see [handover.NewLocalClient].
func (i *Interception) Connect(ctx context.Context) (*net.UnixConn, error) {
	return i.listeners.Connect(ctx)
}

// route is an [observe.Route].
func (i *Interception) route(cookie uint64, local, peer netip.AddrPort) (to netip.AddrPort, follow bool) {
	if to, ok := i.redirect.Destination(cookie); ok {
		return to, true
	}
	if i.listeners.At(local) || i.listeners.At(peer) || i.own != nil && i.own(cookie, local, peer) {
		return netip.AddrPort{}, false
	}
	return peer, true
}

// keepSnapshot keeps the latest snapshot for run, which may be busy; it is called from
// one goroutine.
func (i *Interception) keepSnapshot(s *discover.Snapshot) {
	if i.adoption != nil {
		i.adoption.found.Store(s)
	}
	select {
	case <-i.found:
	default:
	}
	i.found <- s
}

// lastPush is a worker that told its scheduler, on a connection that bypasses the
// proxy, that it pushes no more.
type lastPush struct {
	scheduler netip.AddrPort
	node      int32
}

// mostEnded bounds the workers whose end is not yet sent to the proxies.
const mostEnded = 1024

// lastPush queues the news for the proxies. It does not block: its caller reads the
// kernel's records.
func (i *Interception) lastPush(scheduler netip.AddrPort, node int32) {
	select {
	case i.ended <- lastPush{scheduler, node}:
	default:
		slog.Warn("the proxy is not told of a worker's last push: too many end at a time", "job", scheduler, "node", node)
	}
}

// tellEnded passes on what lastPush keeps.
func (i *Interception) tellEnded(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case w := <-i.ended:
			i.listeners.TellLastPush(w.scheduler.String(), w.node)
		}
	}
}

// serveProxies serves proxies until ctx ends; close is the caller's.
func (i *Interception) serveProxies(ctx context.Context, a *agent.Agent, opts agent.Options) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return i.listeners.Run(ctx, false) })
	g.Go(func() error { i.follow(ctx, a, opts); return nil })
	g.Go(func() error { i.tellEnded(ctx); return nil })
	if i.adoption != nil {
		g.Go(func() error { i.adoption.run(ctx, a); return nil })
	}
	return g.Wait()
}

func (i *Interception) follow(ctx context.Context, a *agent.Agent, opts agent.Options) {
	named := namedGroups(opts)
	told := map[int]bool{}
	var before string
	reconcile := func(all []listeners.Process) {
		now := ""
		if err := i.listeners.Reconcile(append(all, named...)); err != nil && ctx.Err() == nil {
			if now = err.Error(); now != before {
				slog.Warn("not all jobs' connections are intercepted", "error", err)
			}
		}
		before = now
	}
	if len(named) > 0 {
		reconcile(nil)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-i.found:
			all, left := listeners.Discovered(s, opts.Proc, opts.CgroupRoot, a.Called)
			for _, p := range left {
				if !told[p.PID] && len(told) < 1024 {
					told[p.PID] = true
					slog.Warn("connections are not intercepted: the process must be in a cgroup v2 below the root, and use TCP", "pid", p.PID, "cgroup", p.Cgroup)
				}
			}
			inNamed(all, named)
			reconcile(all)
		}
	}
}

// namedGroups are the cgroups of --cgroup, in the agent's own network
// namespace: there connections are intercepted from the first one on, before
// any process is found.
func namedGroups(opts agent.Options) (named []listeners.Process) {
	for _, group := range opts.Cgroups {
		path := group
		if below := filepath.Join(opts.CgroupRoot, group); !strings.HasPrefix(group, opts.CgroupRoot) {
			if _, err := os.Stat(below); err == nil {
				path = below
			}
		}
		named = append(named, listeners.Process{Cgroup: path, Netns: "/proc/self/ns/net"})
	}
	return named
}

// inNamed gives processes below a named cgroup that one: groups do not nest.
func inNamed(all, named []listeners.Process) {
	for i := range all {
		for _, n := range named {
			if strings.HasPrefix(all[i].Cgroup+"/", strings.TrimSuffix(n.Cgroup, "/")+"/") {
				all[i].Cgroup = n.Cgroup
			}
		}
	}
}

// Abandon undoes [Intercept], where no [Daemon] is to run with it; i may be nil.
func (i *Interception) Abandon() error {
	if i == nil {
		return nil
	}
	return errors.Join(i.listeners.Close(), i.close())
}

// close leaves nothing in the kernel, but for jobs whose connections must not go
// direct. Nobody may ask for a route any more.
func (i *Interception) close() error {
	groups, err := i.redirect.Groups()
	for _, g := range groups {
		if g.Policy.FailClosed {
			slog.Warn("left in the kernel, because keys of the job are displaced: psidecar restore, then psidecar unload", "cgroup", g.Cgroup)
			return errors.Join(err, i.redirect.Close())
		}
	}
	err = errors.Join(err, i.redirect.Close())
	if _, gone := redirect.Unload(i.dir); gone != nil {
		err = errors.Join(err, fmt.Errorf("unloading: %w", gone))
	}
	return err
}
