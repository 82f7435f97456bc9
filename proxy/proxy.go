// Package proxy stands between the processes of a job on one host and the rest of the job. It takes
// the connections that they make (intercepted, or made to an explicit listener), carries each over
// a link to the proxy of the host where it was going, and there to its real destination. Where
// there is no such proxy it connects directly, and the bytes are untouched.
//
// Its inputs are listeners, a function that returns where an accepted connection was meant to go,
// and codecs; its outputs the job's bytes, metrics and the state of each connection. Package daemon
// and cmd/psidecar call it.
//
// # Connections
//
// A connection of the job has one of three kinds on a host:
//
//	link       process ─► Serve, outbound ─► link to the other host's proxy
//	accepted   link ─► ServeLinks, greet, inbound ─► real destination
//	direct     process ─► Serve, outbound ─► real destination, bypassing the mesh
//
// accept.go takes them from listeners, outbound.go and inbound.go set them up; package link makes the link and package relay carries the
// bytes. Everything else that comes to the mesh port is told apart in greet: links between sites
// (package jobs), lanes for acknowledgements (lane.go) and for shared values (shared.go), and links
// that resume a connection.
//
// # What outlives a link
//
// A connection of the job lasts longer than its links. Two mechanisms let it continue over another
// one:
//
//   - A session (kept.go, acks.go, lane.go, resume.go, takeover.go; package keep) survives a broken link and a
//     killed proxy (--outlive): what the process sent stays in the kernel's receive queue until the far process
//     has it, and the agent holds duplicates of the sockets.
//   - A transit (pass.go, pass_link.go, pass_hosts.go) survives the orderly end of a proxy: both ends bring the
//     connection to stand between two messages, the link ends, and the next proxy makes another. The agent holds
//     the process's socket in between.
//
// A connection is a session, or a transit, or neither; then it ends with its proxy (drain.go).
//
// # Guard
//
// A [Guard] keeps connections of jobs whose keys are displaced from bypassing their proxy: it asks
// the host's agent to make cgroups fail closed.
//
// [Guard.Need] registers a run that needs it, [Guard.Add] a listener over which its connections
// come; one policy for each cgroup goes out through a [GuardAgent]. A cgroup fails closed while any
// run in it needs that, so the end of one run never opens it for another. [Guard.Run] compares the
// agent's policies with the wanted ones periodically and sends them again, because an agent that
// was replaced starts without them. Package jobs decides what is needed.
//
// # Concurrency
//
// Each connection has a goroutine that sets it up and carries it (Proxy.work counts them), and
// package relay runs two more. They end when Proxy.life does. The locks of this package, in the
// order in which they are acquired where more than one is held: kept.mu, lanes.mu, lane.mu;
// kept.mu, session.mu. All others are leaves: register.mu, passes.mu, peers.mu, identities.mu,
// reach.mu, Guard.mu, admission.mu. Under lane.mu, passes.mu, Guard.mu and admission.mu a Keeper,
// Heir, GuardAgent or Conn may be called, whose locks lead to none of this package.
package proxy

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/internal/handshake"
	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/internal/policy"
	"github.com/psidecar/psidecar/internal/shares"
	"github.com/psidecar/psidecar/proxy/aggregate"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/proxy/payoff"
	"github.com/psidecar/psidecar/proxy/relay"
)

// Options configure a proxy. Durations, sizes and counts that are zero take the defaults given.
type Options struct {
	// MeshPort is the port where proxies accept links; 0: there are no other proxies, and all
	// connections are direct.
	MeshPort uint16
	// TLS is for links. Without it they are plain, which is allowed only on loopback, or everywhere
	// with Insecure.
	TLS      *link.Identity
	Insecure bool
	// MeshOnly refuses connections that would have to bypass the mesh, instead of connecting
	// directly.
	MeshOnly bool
	// Allow lists destinations that links may ask for, besides the address at which the link
	// arrived.
	Allow []netip.Prefix
	// Reach determines which ports of that address links may ask for.
	Reach  Reach
	Codecs []relay.Codec // in order of preference; a link uses one
	// Auto has messages encoded only where that pays (--codec auto), except where a rule concerns
	// their values.
	Auto bool
	// Spares lets connections bypass the proxy where their links are fast, as long as nothing else
	// is asked for; see [Proxy.Spares].
	Spares bool
	// Trials has those of Auto, besides others that are made of what Options has; nil: there are no others.
	Trials *payoff.Trials
	// Values is the one of Codecs that changes values, if any. Its rules and counts are served with
	// the proxy's state.
	Values *values.Codec
	// Aggregate sums pushes of this host's workers; nil: they go one by one.
	Aggregate *aggregate.Table
	// AggregateAsked restricts that to jobs for which owners or the planner ask.
	AggregateAsked bool
	// AggregateProbed restricts it to jobs whose servers are known to add, by a test of Jobs.
	AggregateProbed bool
	// Titles has the names of jobs and the wishes of their owners; nil: none.
	Titles *policy.Titles
	// ValuesFile keeps what is held back of pushes, for the next proxy; empty: it is lost.
	ValuesFile string
	// PeersFile keeps which hosts have a proxy, for the next one; empty: it is not kept.
	PeersFile string
	// Jobs routes requests for keys that are not at home; nil: all keys are at home. [Proxy.Run]
	// runs it. Its Dial should be [Proxy.DialSite].
	Jobs *jobs.Jobs
	// Guard is shown in the proxy's state; nil: nothing guards connections.
	Guard *Guard
	// Health gets a beat for each turn of the loops, and answers /healthz; nil: always healthy.
	Health *health.Loops

	PeerGrace      time.Duration // how long connections wait for the proxy of a host that had one; 3 s
	PeerPatience   time.Duration // how long connections wait for the mesh port of a host that is new; 1 s
	Retry          time.Duration // how long a host without a proxy is not tried again; 10 s
	ConnectTimeout time.Duration // how long a silent mesh port delays a connection; 300 ms
	DialTimeout    time.Duration // for connecting to real destinations; 30 s
	HelloTimeout   time.Duration // for the hello of connections to the mesh port; 3 s
	Grace          time.Duration // for connections in use, when the proxy ends; 10 s
	Mark           int           // SO_MARK of the proxy's own sockets, if it may set it; 0: none
	MaxConnections int           // 16384, or what the limit of open files allows
	MemoryBytes    int64         // for messages that are held, of all connections together; 1 GiB
	Log            *slog.Logger
}

// LeastMemory is the minimum of Options.MemoryBytes: one message of the largest size that another
// proxy may send encoded must fit.
const LeastMemory = 256 << 20

// defaults sets the zero fields.
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

// localDial returns how long an acceptor tries to reach a destination on its own host. The
// dialer waits for that, so it must stay well below the patience of the job.
func (o *Options) localDial() time.Duration { return min(o.DialTimeout, 5*time.Second) }

// Listener is where connections of the job come in.
type Listener struct {
	net.Listener
	// Destination returns where a connection was meant to go: see [Fixed] and
	// [OriginalDestination].
	Destination func(*net.TCPConn) (netip.AddrPort, error)
	// Job is the scheduler's address of the job whose connections come here; empty where it is
	// unknown.
	Job string
	// Origin distinguishes processes with the same node id: whatever identifies the group of
	// processes that connect here. Empty: their address does.
	Origin string
	// Scope is that of the processes that connect here; see [jobs.Scope].
	Scope jobs.Scope
}

// Proxy is one host's proxy. Its methods are safe for concurrent use, unless they say that they are
// for the time before connections come.
//
// A Proxy ends once: Run's context ends, listeners close, [Proxy.Drain] ends the connections, and
// kill ends what is left of life.
type Proxy struct {
	opts       Options
	instance   relay.Instance
	memory     *relay.Memory
	dialer     *net.Dialer
	links      link.Dialer
	acceptor   link.Acceptor
	peers      *peers
	paths      payoff.Paths[relay.Instance] // costs per byte to each peer, with Options.Auto
	load       payoff.Load                  // of this host's processors, with Options.Auto
	entry      *admission                   // slots for connections
	greeting   *handshake.Set               // connections to mesh ports before their hello
	ofScopes   *shares.Of[dialing]          // of links that are being dialed
	toHosts    *shares.Of[netip.Addr]       // likewise
	reach      *reach
	identities *identities // of other hosts' proxies
	sums       sumRules
	kept       kept   // connections that can outlive this proxy
	passes     passes // connections that can change links in order
	log        *slog.Logger
	failures   *failures
	restoreMu  sync.Mutex // guards restoring
	restoring  string     // why what waits of pushes could not be taken up, as last logged
	advising   sync.Mutex // held during a trial of codecs: one at a time
	conns      *register
	asked      atomic.Bool // see Spares
	// work counts connections being served. life is the context of all of them; kill ends it by
	// force.
	work sync.WaitGroup
	life context.Context
	kill context.CancelCauseFunc
	// Links between sites are counted apart: they are of use for as long as the job has connections
	// here, and are ended after those.
	sites  sync.WaitGroup
	lanes  sync.WaitGroup // over which other proxies share values
	visits visits
	// How long drains hold and wait; see drain.go. Tests set others.
	holdFor, restFor, pauseFor time.Duration
	sitesLife                  context.Context
	endSites                   context.CancelFunc
	// setup is the context in which connections of the job are set up, until each is carried. It
	// ends when the proxy begins to end.
	setup    context.Context
	endSetup context.CancelFunc
}

// New returns a proxy that does nothing yet; see [Proxy.Run], [Proxy.Serve] and [Proxy.ServeLinks].
// It takes few resources: a descriptor, and no goroutine.
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
		dialer:   patientDialer(opts.Mark, opts.Log),
		peers:    newPeers(opts.Retry),
		conns:    newRegister(),
		reach:    newReach(opts.Reach),
		ofScopes: shares.New[dialing](dialingOfScope), toHosts: shares.New[netip.Addr](dialingToHost),
		holdFor: holdFor, restFor: restFor, pauseFor: pauseFor, identities: newIdentities(),
	}
	p.load.Trial.Among = opts.Trials
	// Hosts of the previous proxy are known before the first connection comes.
	p.peers.keepFile(opts.PeersFile, opts.Log)
	p.greeting = handshake.New(handshake.Affordable(maxHandshakes), handshakesPerSource)
	// Handshakes take descriptors too, but no slots, so they are subtracted from what slots
	// may use.
	p.entry = newAdmission(affordable(opts.MaxConnections, p.greeting.Most()))
	// A connection that finds no slot goes direct, if the agent lets it.
	if n := p.entry.most; n < opts.MaxConnections {
		p.log.Warn("the open files limit allows fewer connections than --max-connections", "connections", n, "asked", opts.MaxConnections)
	}
	if _, err := rand.Read(p.instance[:]); err != nil {
		return nil, fmt.Errorf("proxy: choosing a name for this process: %w", err)
	}
	p.conns.instance = p.instance
	p.links = link.Dialer{Net: p.dialer, ConnectTimeout: opts.ConnectTimeout, AnswerTimeout: opts.localDial() + opts.HelloTimeout, TLS: opts.TLS}
	p.acceptor = link.Acceptor{Instance: p.instance, HelloTimeout: opts.HelloTimeout, TLS: opts.TLS}
	if opts.Aggregate != nil {
		opts.Aggregate.Bound(p.memory)
	}
	p.kept.init(p)
	p.passes.init(p)
	p.life, p.kill = context.WithCancelCause(context.Background())
	p.sitesLife, p.endSites = context.WithCancel(p.life)
	p.setup, p.endSetup = context.WithCancel(p.life)
	return p, nil
}

// TellFull sets a function that is called when the proxy takes no more connections, for want of
// slots or descriptors, and when it does again. It must not block. Call it before connections come.
func (p *Proxy) TellFull(tell func(full bool)) { p.entry.tell = tell }

// Crowded returns the cgroup whose connections use so much of what the proxy can carry that new ones
// should go direct; 0: there is none.
func (p *Proxy) Crowded() uint64 { return p.entry.crowded() }

// Run serves listeners of the job and of the mesh until ctx ends, and then ends in order: nothing
// is accepted any more, and connections get Options.Grace to come to rest or to be handed over. It
// returns when nothing of the proxy is left running.
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
	g.Go(func() error { p.watchLoad(serving); return nil })
	g.Go(func() error { p.restoreValues(serving); return nil })
	// Requests are routed until the last connection has ended.
	routing, stop := context.WithCancel(context.WithoutCancel(ctx))
	routed := make(chan error, 1)
	go func() { routed <- p.route(routing) }()
	err := g.Wait()
	// The order matters: lanes acknowledge until the last connection has ended, what waits of
	// pushes is complete only then, and requests have to be routed for as long as connections carry
	// any.
	p.Drain()
	p.kept.lanes.close()
	p.lanes.Wait()
	p.saveValues()
	p.entry.close()
	stop()
	return errors.Join(err, <-routed)
}

// lookEvery is the period at which the list of connections is locked, which proves that nobody
// holds the lock.
const lookEvery = 500 * time.Millisecond

// lookAfter beats while the list of connections can be locked, and gives memory back to the system
// when there are none, until ctx ends.
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

// route runs the jobs until ctx ends.
func (p *Proxy) route(ctx context.Context) error {
	if p.opts.Jobs == nil {
		return nil
	}
	return p.opts.Jobs.Run(ctx)
}

// newLinkID returns a number that no other link of this instance has.
func (p *Proxy) newLinkID() uint64 { return p.conns.nextLink.Add(1) }

// String names the proxy's process, as other proxies know it.
func (p *Proxy) String() string { return fmt.Sprintf("%x", p.instance[:8]) }
