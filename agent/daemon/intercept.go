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
	"github.com/psidecar/psidecar/agent/observe"
	"github.com/psidecar/psidecar/bpf/redirect"
)

// InterceptOptions say which connects are redirected and how the proxy gets its listeners.
type InterceptOptions struct {
	Dir string // folder in a BPF file system where programs and maps are pinned
	// Socket is the unix socket at which proxies connect; empty: the proxy is in this process
	// and calls [Interception.Connect].
	Socket string
	UID    int // user that the proxy runs as, besides root and this process's own
	// Grace is how long connects wait for the next proxy after the last one left, before they
	// go direct. HangAfter is how long a proxy may leave pings unanswered before it is killed;
	// 0 never kills it.
	Grace, HangAfter time.Duration
	MeshPort         uint16   // opened in jobs' network namespaces; 0: not
	Exclude          []uint16 // ports whose connections are never redirected
	Adopt            bool     // connections that bypass the proxy by chance are moved to it, see Adopter
}

// Interception redirects jobs' connects to the host's proxy while an agent runs. [Intercept]
// creates it; a [Daemon] or [Interception.Abandon] closes it. Its methods may be called from
// any goroutine, [Interception.Own] only before the agent runs.
type Interception struct {
	dir       string
	redirect  *redirect.Redirect
	listeners *listeners.Listeners
	found     chan *discover.Snapshot // capacity 1: the latest snapshot that follow has not taken
	ended     chan lastPush           // to be sent to the proxies
	adoption  adoption
	// own, if not nil, recognizes the sockets of a proxy in this process.
	own func(cookie uint64, local, peer netip.AddrPort) bool
}

// Intercept loads the redirecting programs and maps and opens the socket for proxies. No
// connect is redirected before [Daemon.Run].
func Intercept(o InterceptOptions) (_ *Interception, err error) {
	var exclusions []redirect.Exclusion
	for _, port := range o.Exclude {
		exclusions = append(exclusions, redirect.Exclusion{Port: port})
	}
	i := &Interception{dir: o.Dir, found: make(chan *discover.Snapshot, 1), ended: make(chan lastPush, mostEnded)}
	if i.redirect, err = redirect.Open(redirect.Options{Dir: o.Dir}); err != nil {
		return nil, fmt.Errorf("%w (psidecar doctor reports what is missing)", err)
	}
	// Before any cgroup is attached, so that no excluded connect is ever redirected.
	err = i.redirect.SetExclusions(exclusions)
	if err == nil {
		i.listeners, err = listeners.New(listeners.Options{Redirect: i.redirect, Socket: o.Socket, NoSocket: o.Socket == "", UID: o.UID, Grace: o.Grace, HangAfter: o.HangAfter, MeshPort: o.MeshPort})
	}
	if err != nil {
		return nil, errors.Join(err, i.redirect.Close())
	}
	i.adoption.listeners, i.adoption.port, i.adoption.late = i.listeners, o.MeshPort, o.Adopt
	return i, nil
}

// tellAgent connects the agent's options to the interception, in both directions: the agent
// passes on the processes that it finds and asks for original destinations.
func (i *Interception) tellAgent(o *agent.Options) {
	// Answers of other hosts reach a worker from the proxy, over loopback, which is otherwise
	// not captured on receipt.
	o.Capture.IngressLoopback = true
	o.Found = i.keepSnapshot
	o.Route = i.route
	o.LastPush = i.lastPush
	o.Carried.Proxies = i.listeners.Proxies
	if o.Saved == nil {
		o.Saved = i.listeners.Carried
	}
	o.PartKeys = i.partKeys
	o.Collectors = append(o.Collectors, i.listeners)
	i.adoption.tellAgent(o)
}

// partKeys returns which keys are parts of others by what proxies say; see [agent.Options].
func (i *Interception) partKeys(job netip.AddrPort, known int) (parts []observe.PartRange) {
	for _, r := range i.listeners.PartKeys(job, known) {
		parts = append(parts, observe.PartRange{First: r[0], Last: r[1], Whole: r[2]})
	}
	return parts
}

// Mark returns the SO_MARK of sockets that are never redirected. This process's own connections
// need it, since it may share a cgroup with a job.
func (i *Interception) Mark() (uint32, error) { return i.redirect.Mark() }

// Own sets a function that recognizes the sockets of a proxy in this process.
func (i *Interception) Own(owns func(cookie uint64, local, peer netip.AddrPort) bool) { i.own = owns }

// Connect returns one end of a connection by which a proxy in this process gets its listeners;
// see [handover.NewLocalClient].
func (i *Interception) Connect(ctx context.Context) (*net.UnixConn, error) {
	return i.listeners.Connect(ctx)
}

// route is an [observe.Route]. A redirected socket has an entry in the BPF map. A socket at one
// of the listeners without such an entry is the proxy's side of a redirected connection:
// following it would count its messages twice.
func (i *Interception) route(cookie uint64, local, peer netip.AddrPort) (to netip.AddrPort, follow bool) {
	if to, ok := i.redirect.Destination(cookie); ok {
		return to, true
	}
	if i.listeners.At(local) || i.listeners.At(peer) || i.own != nil && i.own(cookie, local, peer) {
		return netip.AddrPort{}, false
	}
	return peer, true
}

// keepSnapshot keeps the latest snapshot for follow and drops one that follow has not taken,
// since it may be busy. It never blocks, because it is called from one goroutine only.
func (i *Interception) keepSnapshot(s *discover.Snapshot) {
	i.adoption.found.Store(s)
	select {
	// Only this goroutine sends, so after draining there is room.
	case <-i.found:
	default:
	}
	i.found <- s
}

// lastPush is a worker that announced its last push to the scheduler on a connection that
// bypasses the proxy.
type lastPush struct {
	scheduler netip.AddrPort
	node      int32
}

// mostEnded is the capacity of Interception.ended.
const mostEnded = 1024

// lastPush queues a message to the proxies. It never blocks, because its caller reads the
// kernel's records.
func (i *Interception) lastPush(scheduler netip.AddrPort, node int32) {
	select {
	case i.ended <- lastPush{scheduler, node}:
	default:
		slog.Warn("cannot notify the proxy of a worker's last push: too many workers exit at once", "job", scheduler, "node", node)
	}
}

// tellEnded sends the proxies what lastPush queued, until ctx ends.
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

// serveProxies serves proxies until ctx ends. It closes the listeners; the caller closes the
// rest (close).
func (i *Interception) serveProxies(ctx context.Context, a *agent.Agent, opts agent.Options) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return i.listeners.Run(ctx, false) })
	g.Go(func() error { i.follow(ctx, a, opts); return nil })
	g.Go(func() error { i.tellEnded(ctx); return nil })
	g.Go(func() error { i.adoption.run(ctx, a); return nil })
	return g.Wait()
}

// follow keeps the listeners in line with the processes that the agent finds, until ctx ends.
// The same error is logged once until it changes, and a process that cannot be served once.
func (i *Interception) follow(ctx context.Context, a *agent.Agent, opts agent.Options) {
	named := namedGroups(opts)
	told := map[int]bool{}
	var before string
	reconcile := func(all []listeners.Process) {
		now := ""
		if err := i.listeners.Reconcile(append(all, named...)); err != nil && ctx.Err() == nil {
			if now = err.Error(); now != before {
				slog.Warn("cannot intercept all job connections", "error", err)
			}
		}
		before = now
	}
	// Before anything is found.
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
				// A host may start such processes without end. The bound keeps log and memory
				// small.
				if !told[p.PID] && len(told) < 1024 {
					told[p.PID] = true
					slog.Warn("cannot intercept connections: the process must be in a cgroup v2 below the root, and use TCP", "pid", p.PID, "cgroup", p.Cgroup)
				}
			}
			// A process of a named cgroup must not attach its own cgroup a second time.
			inNamed(all, named)
			reconcile(all)
		}
	}
}

// namedGroups returns the cgroups of --cgroup as processes in the agent's own network
// namespace. Their connects are redirected from the start, before any process of them is found,
// so that the first connection of a job is not missed.
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

// inNamed replaces the cgroup of processes below a named cgroup by that one, because groups do
// not nest: a connect belongs to one group only.
func inNamed(all, named []listeners.Process) {
	for i := range all {
		for _, n := range named {
			if strings.HasPrefix(all[i].Cgroup+"/", strings.TrimSuffix(n.Cgroup, "/")+"/") {
				all[i].Cgroup = n.Cgroup
			}
		}
	}
}

// Abandon closes an Interception that no [Daemon] runs with. i may be nil.
func (i *Interception) Abandon() error {
	if i == nil {
		return nil
	}
	return errors.Join(i.listeners.Close(), i.close())
}

// close closes the programs and removes their pins, unless a group fails closed: its connects
// must not go direct while keys of the job are displaced, so it stays redirected without an
// agent. route must not be called any more.
func (i *Interception) close() error {
	groups, err := i.redirect.Groups()
	for _, g := range groups {
		if g.Policy.FailClosed {
			slog.Warn("redirection stays in the kernel because keys of the job are displaced; run psidecar restore, then psidecar unload", "cgroup", g.Cgroup)
			return errors.Join(err, i.redirect.Close())
		}
	}
	err = errors.Join(err, i.redirect.Close())
	if _, gone := redirect.Unload(i.dir); gone != nil {
		err = errors.Join(err, fmt.Errorf("unloading: %w", gone))
	}
	return err
}
