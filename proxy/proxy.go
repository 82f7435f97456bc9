// Package proxy stands between the processes of a job on one host and the rest
// of the job. It takes the connections that they make (intercepted, or made to
// an explicit listener), carries each over a link to the proxy of the host
// where it was going, and there to its real destination; where there is no
// such proxy it connects directly, and the bytes are untouched.
//
// What comes in: listeners, a function that tells where an accepted
// connection was meant to go, codecs. What goes out: the job's bytes, metrics,
// the state of each connection. cmd/psidecar calls it. Links are made by
// package link, bytes carried by package relay.
//
// # Guard
//
// A [Guard] keeps connections of jobs whose keys are displaced from bypassing their
// proxy: it asks the host's agent to make cgroups fail closed.
//
// [Guard.Need] registers a run that needs it, [Guard.Add] a listener over which its
// connections come; one policy for each cgroup goes out through a [GuardAgent]. A
// cgroup fails closed while any run in it needs that, so the end of one run never
// opens it for another. [Guard.Run] compares the agent's policies with the wanted ones
// periodically and sends them again, because an agent that was replaced starts without
// them. Package jobs decides what is needed.
package proxy

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/internal/dial"
	"github.com/psidecar/psidecar/internal/handshake"
	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/internal/policy"
	"github.com/psidecar/psidecar/proxy/aggregate"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/proxy/payoff"
	"github.com/psidecar/psidecar/proxy/reason"
	"github.com/psidecar/psidecar/proxy/relay"
)

// Options say what a proxy does. Zero durations, sizes and counts take the
// defaults named.
type Options struct {
	// MeshPort is where other hosts' proxies listen; 0: there are none, all
	// connections are direct.
	MeshPort uint16
	// TLS is for links; without it they are plain, which is allowed only on
	// loopback or where Insecure says so.
	TLS      *link.Identity
	Insecure bool
	// MeshOnly refuses connections that would have to go past the mesh,
	// instead of connecting directly.
	MeshOnly bool
	// Allow names destinations that links may ask for besides the address at
	// which the link arrived.
	Allow []netip.Prefix
	// Reach says which ports of that address they may ask for.
	Reach  Reach
	Codecs []relay.Codec // in order of preference, one is used on a link
	// Auto has Codecs encode where that pays, where no rule is for a message's values.
	Auto bool
	// Values is the one of Codecs that changes values, if any: its rules and
	// counts are served with the proxy's state.
	Values *values.Codec
	// Aggregate sums pushes of this host's workers; nil: they go one by one.
	Aggregate *aggregate.Table
	// AggregateAsked has only those of jobs summed for which owners or the planner ask.
	AggregateAsked bool
	// Titles is what jobs are called, and what their owners ask for; nil: nothing.
	Titles *policy.Titles
	// ValuesFile is where what waits of pushes is kept for the proxy after this
	// one; empty: nowhere.
	ValuesFile string
	// PeersFile is where it is kept which hosts have a proxy, for the next one;
	// empty: nowhere.
	PeersFile string
	// Jobs routes requests for keys that are not at home; nil: all keys are.
	// Run runs it. Its Dial should be [Proxy.DialSite].
	Jobs *jobs.Jobs
	// Guard is what keeps connections from going past the proxy, to be shown;
	// nil: nothing does.
	Guard *Guard
	// Health is notified by each turn of the loops, and answers /healthz; nil:
	// always healthy.
	Health *health.Loops

	PeerGrace      time.Duration // how long connections wait for the proxy of a host that had one; 3 s
	PeerPatience   time.Duration // how long connections wait for the mesh port of a host of which nothing is known; 1 s
	Retry          time.Duration // for how long a host without a proxy is not tried again; 10 s
	ConnectTimeout time.Duration // how long a silent mesh port delays a connection; 300 ms
	DialTimeout    time.Duration // for real destinations; 30 s
	HelloTimeout   time.Duration // for what comes to the mesh port; 3 s
	Grace          time.Duration // for connections in use, when the proxy is to end; 10 s
	Mark           int           // SO_MARK of the proxy's own sockets, if it may set it; 0: none
	MaxConnections int           // 16384, or what the limit of open files allows
	MemoryBytes    int64         // for messages held, all connections together; 1 GiB
	Log            *slog.Logger
}

// LeastMemory is the least Options.MemoryBytes: one message of the largest size
// that another proxy may send encoded must find room.
const LeastMemory = 256 << 20

func (o *Options) defaults() {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&o.Retry, 10*time.Second)
	set(&o.PeerGrace, 3*time.Second)
	set(&o.PeerPatience, time.Second)
	set(&o.ConnectTimeout, 300*time.Millisecond)
	set(&o.DialTimeout, 30*time.Second)
	set(&o.HelloTimeout, 3*time.Second)
	set(&o.Grace, 10*time.Second)
	if o.MaxConnections == 0 {
		o.MaxConnections = 16384
	}
	if o.MemoryBytes == 0 {
		o.MemoryBytes = 1 << 30
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
}

// localDial is for how long an acceptor tries to reach a destination on its own
// host, for which the dialer waits.
func (o *Options) localDial() time.Duration { return min(o.DialTimeout, 5*time.Second) }

// Listener is where connections of the job come in.
type Listener struct {
	net.Listener
	// Destination says where a connection was meant to go: see [Fixed] and
	// [OriginalDestination].
	Destination func(*net.TCPConn) (netip.AddrPort, error)
	// Job is the scheduler's address of the job whose connections come here;
	// empty where that is not known.
	Job string
	// Origin tells processes apart whose node id is the same: whatever names
	// the group of processes that connect here. Empty: their address does.
	Origin string
	// Scope is that of the processes that connect here.
	Scope jobs.Scope
}

// Proxy is one host's proxy.
type Proxy struct {
	opts       Options
	instance   relay.Instance
	memory     *relay.Memory
	dialer     *net.Dialer
	links      link.Dialer
	acceptor   link.Acceptor
	peers      *peers
	paths      payoff.Paths[relay.Instance] // with Options.Auto
	entry      *admission
	greeting   *handshake.Set
	reach      *reach
	identities *identities // of other hosts' proxies
	sums       sumRules
	kept       kept   // connections that can outlive this proxy
	passes     passes // and those that can go on over another link in order
	log        *slog.Logger
	failures   *failures
	restoreMu  sync.Mutex // guards restoring
	restoring  string     // why what waited of pushes could not be taken up, as it was logged
	advising   sync.Mutex // held while codecs are tried: one trial at a time
	conns      *register
	// work counts connections being served; life is theirs and ends by force.
	work sync.WaitGroup
	life context.Context
	kill context.CancelCauseFunc
	// Links between sites are counted apart: they are of use as long as the job
	// has connections here, and are ended then.
	sites  sync.WaitGroup
	lanes  sync.WaitGroup // over which other proxies share values
	visits visits
	// How long drains hold and wait: see drain.go.
	holdFor, restFor time.Duration
	sitesLife        context.Context
	endSites         context.CancelFunc
}

// New returns a proxy that does nothing yet; see [Proxy.Serve],
// [Proxy.ServeLinks] and [Proxy.Run].
func New(opts Options) (*Proxy, error) {
	opts.defaults()
	if opts.MemoryBytes < LeastMemory {
		return nil, fmt.Errorf("proxy: %d bytes of memory, at least %d are needed", opts.MemoryBytes, LeastMemory)
	}
	for _, c := range opts.Codecs {
		if n := len(c.Offer()); n > relay.MaxOffer {
			return nil, fmt.Errorf("proxy: codec %s offers %d bytes, at most %d are allowed", c.Name(), n, relay.MaxOffer)
		}
	}
	p := &Proxy{
		opts: opts, memory: relay.NewMemory(opts.MemoryBytes), log: opts.Log, failures: newFailures(opts.Log),
		dialer:  dial.MarkingDialer(opts.Mark, opts.Log),
		peers:   newPeers(opts.Retry),
		conns:   newRegister(),
		reach:   newReach(opts.Reach),
		holdFor: holdFor, restFor: restFor, identities: newIdentities(),
	}
	p.peers.keepFile(opts.PeersFile, opts.Log)
	p.greeting = handshake.New(handshake.Affordable(maxHandshakes), handshakesPerSource)
	p.entry = newAdmission(affordable(opts.MaxConnections, p.greeting.Most()))
	if n := p.entry.most; n < opts.MaxConnections {
		p.log.Warn("the limit of open files allows fewer connections than asked for", "connections", n, "asked", opts.MaxConnections)
	}
	if _, err := rand.Read(p.instance[:]); err != nil {
		return nil, fmt.Errorf("proxy: choosing a name for this process: %w", err)
	}
	p.links = link.Dialer{Net: p.dialer, ConnectTimeout: opts.ConnectTimeout, AnswerTimeout: opts.localDial() + opts.HelloTimeout, TLS: opts.TLS}
	p.acceptor = link.Acceptor{HelloTimeout: opts.HelloTimeout, TLS: opts.TLS}
	if opts.Aggregate != nil {
		opts.Aggregate.Bound(p.memory)
	}
	p.kept.init(p)
	p.passes.init(p)
	p.life, p.kill = context.WithCancelCause(context.Background())
	p.sitesLife, p.endSites = context.WithCancel(p.life)
	return p, nil
}

// TellFull has tell called when the proxy takes no more connections, for want
// of room or descriptors, and when it does again. tell must not block. Call it
// before connections come.
func (p *Proxy) TellFull(tell func(full bool)) { p.entry.tell = tell }

// Run serves listeners of the job and of the mesh until ctx ends, then stops in
// order: nothing is accepted any more, connections get Options.Grace to come
// to rest.
func (p *Proxy) Run(ctx context.Context, job []Listener, mesh []net.Listener) error {
	p.restoreOnce() // before the workers of a killed proxy come back
	g, serving := errgroup.WithContext(ctx)
	for _, l := range job {
		g.Go(func() error { return p.Serve(serving, l) })
	}
	for _, l := range mesh {
		g.Go(func() error { return p.ServeLinks(serving, l, 0) })
	}
	g.Go(func() error { p.lookAfter(serving); return nil })
	g.Go(func() error { p.restoreValues(serving); return nil })
	// Requests are routed until the last connection has ended.
	routing, stop := context.WithCancel(context.WithoutCancel(ctx))
	routed := make(chan error, 1)
	go func() { routed <- p.route(routing) }()
	err := g.Wait()
	p.Drain()
	p.kept.lanes.close()
	p.lanes.Wait()
	p.saveValues()
	p.entry.close()
	stop()
	return errors.Join(err, <-routed)
}

// lookEvery is how often the list of connections is asked for, which shows that
// nobody keeps it locked.
const lookEvery = 500 * time.Millisecond

// lookAfter shows that connections can be entered and taken out, and gives memory
// back when there are none, until ctx ends.
func (p *Proxy) lookAfter(ctx context.Context) {
	beat := p.opts.Health.Add("the list of connections", health.Within)
	defer beat.End()
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	memory := releaser{giveBack: giveMemoryBack}
	for {
		active, carried := p.conns.countConnections()
		memory.releaseIfIdle(time.Now(), active, carried)
		beat.Beat()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (p *Proxy) route(ctx context.Context) error {
	if p.opts.Jobs == nil {
		return nil
	}
	return p.opts.Jobs.Run(ctx)
}

// Serve takes connections of the job until ctx ends or the listener is
// closed, which it is on return.
func (p *Proxy) Serve(ctx context.Context, l Listener) error {
	if p.opts.Jobs != nil {
		p.opts.Jobs.Names(l.Scope, l.Job)
	}
	return p.accept(ctx, l.Listener, p.admitted(func(c *net.TCPConn) error {
		destination, err := l.Destination(c)
		if err != nil {
			return reason.Errorf(reason.NoDestination, "connection from %s: %w", c.RemoteAddr(), err)
		}
		if destination == addrPort(c.LocalAddr()) {
			return reason.Errorf(reason.Loop, "connection from %s was made to the proxy itself", c.RemoteAddr())
		}
		return p.outbound(c, l, destination)
	}))
}

// ServeLinks takes links of other proxies likewise. netns is the inode of the
// network namespace in which the listener is, 0 for this process's own.
func (p *Proxy) ServeLinks(ctx context.Context, l net.Listener, netns uint64) error {
	return p.accept(ctx, l, func(c *net.TCPConn) error { return p.greet(c, netns) })
}

// admitted has serve called for connections for which there is room.
func (p *Proxy) admitted(serve func(*net.TCPConn) error) func(*net.TCPConn) error {
	return func(c *net.TCPConn) error {
		if err := p.enter(c.RemoteAddr()); err != nil {
			return err
		}
		defer p.entry.leave()
		return serve(c)
	}
}

// enter takes a slot for a connection, which its caller has to leave.
func (p *Proxy) enter(from net.Addr) error {
	if !p.entry.enter() {
		return reason.Errorf(reason.TooMany, "connection from %s: %d are open already", from, p.entry.most)
	}
	return nil
}

// acceptFor is how long a listener is waited at before its loop shows that it
// turns.
const acceptFor = time.Second

// accept calls serve for each connection, in a goroutine of its own.
func (p *Proxy) accept(ctx context.Context, l net.Listener, serve func(*net.TCPConn) error) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	defer l.Close()
	const shortest, longest = 5 * time.Millisecond, time.Second
	beat := p.opts.Health.Add("taking connections at "+l.Addr().String(), health.Within)
	defer beat.End()
	bounded, _ := l.(interface{ SetDeadline(time.Time) error })
	for wait := shortest; ; {
		beat.Beat()
		if bounded != nil {
			bounded.SetDeadline(time.Now().Add(acceptFor)) // a listener that was closed says so itself
		} else {
			beat.Rest()
		}
		conn, err := l.Accept()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case err == nil:
			wait = shortest
			p.serveConn(conn, serve)
			continue
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return nil
		case reason.IsNoDescriptors(err):
			p.conns.failed(reason.NoDescriptors)
			p.entry.ranShort()
			p.entry.shed(l)
		default:
			p.conns.failed(reason.Accept)
		}
		p.log.Warn("cannot accept connections; trying again", "listener", l.Addr(), "after", wait, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, longest)
	}
}

func (p *Proxy) serveConn(conn net.Conn, serve func(*net.TCPConn) error) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		p.fail(reason.Errorf(reason.Accept, "a listener gave a %T, only TCP can be served", conn))
		conn.Close()
		return
	}
	p.work.Go(func() {
		if err := serve(tcp); err != nil {
			p.fail(err)
			if reason.Of(err) == reason.NoDescriptors {
				p.entry.ranShort()
			}
			relay.Reset(tcp)
		}
	})
}

// newLinkID returns a number that no other link of this instance has.
func (p *Proxy) newLinkID() uint64 { return p.conns.nextLink.Add(1) }

// String names the proxy's process, as other proxies know it.
func (p *Proxy) String() string { return fmt.Sprintf("%x", p.instance[:8]) }
