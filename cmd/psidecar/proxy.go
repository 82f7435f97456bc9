package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/control"
	"github.com/psidecar/psidecar/internal/health"
	"github.com/psidecar/psidecar/internal/identity"
	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/proxy/called"
	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/proxy/daemon"
	"github.com/psidecar/psidecar/proxy/handover"
	"github.com/psidecar/psidecar/proxy/link"
)

// proxyFlags are what psidecar proxy, and what else relays, can be told.
type proxyFlags struct {
	forward, mesh, codecs []string
	allow, ports          []string
	meshPort              uint16
	tls                   link.Files
	insecure, meshOnly    bool
	insecureMesh          bool // by its old name
	retry, grace          time.Duration
	peerGrace, patience   time.Duration
	mark, connections     int
	memory                int64
	share                 string // true, false or auto
	aggregate             string
	aggregateWait         time.Duration
	values                codecFlags
	follow                bool
	http                  string
	names                 []string // for http
	socket                string
	outlive               bool
	control               string
	users                 control.Users
	routing               routingFlags
}

func (f *proxyFlags) relaying(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&f.forward, "forward", nil, "LISTEN=DEST: connections to host:port LISTEN are for host:port DEST; can be repeated")
	flags.StringSliceVar(&f.mesh, "mesh-listen", nil, "host:port where other hosts' proxies connect; default: --mesh-port on all addresses")
	flags.Uint16Var(&f.meshPort, "mesh-port", 9814, "port where other hosts' proxies listen; 0: connect directly always")
	flags.StringSliceVar(&f.codecs, "codec", []string{compact.Name}, "codec to use where the other proxy knows it: compact encodes all messages, auto is compact where the link is what the job waits for and passes messages on as they are where encoding would take longer than it saves, none: none")
	flags.StringSliceVar(&f.allow, "mesh-allow", nil, "CIDRs that other proxies may reach through this one, besides the address at which they reach it")
	flags.StringSliceVar(&f.ports, "mesh-ports", nil, "ports of this host (8000, 7000-7999, any) that other proxies may reach through this one besides those at which the agent finds processes of jobs listening; needed where no agent intercepts")
	flags.StringVar(&f.tls.Cert, "tls-cert", "", "PEM file with this proxy's certificate for links, read again when it changes")
	flags.StringVar(&f.tls.Key, "tls-key", "", "PEM file with its key")
	flags.StringVar(&f.tls.CA, "tls-ca", "", "PEM file with the certificates that peers' are signed by")
	flags.StringSliceVar(&f.tls.Peers, "tls-peer", nil, "patterns (*, ?, [a-z]) for the DNS names and URIs of peers' certificates, which may then be without a role; default: those with a proxy's role (psidecar certs), by whatever name")
	flags.BoolVar(&f.insecure, "insecure", false, "allow links without TLS to and from other hosts; in psidecar up also a planner that lets all who reach it do everything")
	flags.BoolVar(&f.insecureMesh, "insecure-mesh", false, "old name of --insecure")
	flags.StringVar(&f.control, "control-socket", controlSocket, "unix socket at which root, this process's user and --admin-uid change the proxy's rules for values and try codecs, and in psidecar up set names of keys (psidecar names set), below --state-dir where it is no absolute path; empty: none")
	addUsers(cmd, &f.users)
	flags.BoolVar(&f.meshOnly, "mesh-only", false, "refuse connections that would go past the mesh, for want of a proxy or of a certificate that holds, instead of connecting directly and plainly")
	flags.DurationVar(&f.retry, "no-proxy-retry", 10*time.Second, "for how long a host without a proxy is not tried again")
	flags.DurationVar(&f.peerGrace, "peer-grace", 3*time.Second, "how long connections wait for the proxy of a host that had one, before they go direct")
	flags.DurationVar(&f.patience, "peer-patience", time.Second, "how long the first connections to a host wait for its mesh port to open, as a pod's does when the agent has found the job in it, before they go direct")
	flags.DurationVar(&f.grace, "grace", 10*time.Second, "how long connections in use may go on when the proxy is to end")
	flags.IntVar(&f.mark, "mark", 0, "SO_MARK of the proxy's own sockets, by which interception leaves them alone; needs CAP_NET_ADMIN; 0: none")
	flags.IntVar(&f.connections, "max-connections", 16384, "connections carried at a time")
	f.routing.addFlags(cmd)
	flags.Int64Var(&f.memory, "proxy-memory", 1<<30, "bytes for large messages while they are encoded or decoded, and for what codecs remember of them (half of it at most), all connections together")
	flags.StringVar(&f.share, "share-pulls", shareAuto, "send values that several workers of a host pull once to that host, where both proxies do: true, false, or auto, which does not where answers come sooner as they are, as on links as fast as memory; what is kept for it counts towards --proxy-memory, a quarter of it at most")
	flags.Lookup("share-pulls").NoOptDefVal = "true"
	flags.StringVar(&f.aggregate, "aggregate", aggregateNone, "sum what workers of this host push to a server before it leaves: host does so while the links there are busy, for jobs whose servers add up what they get, at once (--handler add); asked does it for jobs whose owners say so (psidecar.io/aggregate, PSIDECAR_AGGREGATE); none")
	flags.DurationVar(&f.aggregateWait, "aggregate-wait", 0, "with --aggregate host, how long a push waits on purpose for those of the host's other workers")
	f.values.register(flags)
	flags.BoolVar(&f.follow, "follow-codecs", true, "take up the rules for values that the planner has (psidecar plan codecs), before those of flags and file, and try codecs when it asks")
}

func (f *proxyFlags) options() (proxy.Options, error) {
	if f.insecureMesh {
		slog.Warn("--insecure-mesh is called --insecure now")
		f.insecure = true
	}
	o := proxy.Options{
		MeshPort: f.meshPort, Insecure: f.insecure, MeshOnly: f.meshOnly,
		Retry: f.retry, PeerGrace: f.peerGrace, PeerPatience: f.patience, Grace: f.grace, Mark: f.mark, MaxConnections: f.connections, MemoryBytes: f.memory,
	}
	switch {
	case f.connections < 1:
		return o, cli.Usagef("--max-connections %d: want at least 1", f.connections)
	case f.memory < proxy.LeastMemory:
		return o, cli.Usagef("--proxy-memory %d: want at least %d bytes, which the largest message of another proxy may take", f.memory, proxy.LeastMemory)
	case f.retry < 0 || f.grace < 0 || f.peerGrace < 0 || f.patience < 0:
		return o, cli.Usagef("--no-proxy-retry, --peer-grace, --peer-patience and --grace cannot be negative")
	case f.meshPort == 0 && f.meshOnly:
		return o, cli.Usagef("--mesh-only with --mesh-port 0 would refuse everything")
	}
	for _, cidr := range f.allow {
		prefix, err := netip.ParsePrefix(cidr)
		if err != nil {
			return o, cli.Usagef("--mesh-allow %q: %w", cidr, err)
		}
		o.Allow = append(o.Allow, prefix)
	}
	if f.routing.dir != "" {
		o.PeersFile = filepath.Join(f.routing.dir, "peers")
	}
	var err error
	if o.Reach.Ports, err = portRanges(f.ports); err != nil {
		return o, err
	}
	if err = f.namedCodecs(&o); err != nil {
		return o, err
	}
	if err = f.aggregates(&o); err != nil {
		return o, err
	}
	o.TLS, err = f.identity()
	return o, err
}

// portRanges reads --mesh-ports.
func portRanges(all []string) (ranges []proxy.PortRange, err error) {
	for _, text := range all {
		if text == "any" {
			ranges = append(ranges, proxy.PortRange{First: 1, Last: 65535})
			continue
		}
		first, last, more := strings.Cut(text, "-")
		if !more {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		to, also := strconv.ParseUint(last, 10, 16)
		if err != nil || also != nil || from == 0 || to < from {
			return nil, cli.Usagef("--mesh-ports %q: want a port, FIRST-LAST, or any", text)
		}
		ranges = append(ranges, proxy.PortRange{First: uint16(from), Last: uint16(to)})
	}
	return ranges, nil
}

// shareAuto has pulled values be shared where that is not slower.
const shareAuto = "auto"

// autoCodec is package compact's codec where package payoff finds that it pays.
const autoCodec = "auto"

// namedCodecs puts the codecs of --codec into o: with compact comes the one
// for values, which is compact where no rule says otherwise.
func (f *proxyFlags) namedCodecs(o *proxy.Options) error {
	rules, err := f.values.rules()
	if err != nil {
		return err
	}
	limits := compact.DefaultLimits
	switch f.share {
	case shareAuto:
	case "true":
		limits.ShareAlways = true
	case "false":
		limits.SharedBytes = 0
	default:
		return cli.Usagef("--share-pulls %q: want true, false or %s", f.share, shareAuto)
	}
	o.Titles = &called.Table{}
	for _, name := range f.codecs {
		switch name {
		case "none", "":
		case compact.Name, autoCodec:
			o.Auto = name == autoCodec
			if o.Values, err = values.New(values.Options{
				Compact: limits, StateBytes: f.values.memory, Rules: rules, Titles: o.Titles, Adds: f.routing.handler == "add",
				Folder: filepath.Join(f.routing.dir, values.Folder),
			}); err != nil {
				return cli.UsageError{Err: err}
			}
			o.ValuesFile = filepath.Join(f.routing.dir, "values.waiting")
			o.Codecs = append(o.Codecs, o.Values, compact.New(limits))
		default:
			return cli.Usagef("--codec %q: there are %s, %s and none", name, autoCodec, compact.Name)
		}
	}
	if o.Values == nil && len(rules) > 0 {
		return cli.Usagef("--codec %s with rules for values: they need --codec %s or %s", strings.Join(f.codecs, ","), autoCodec, compact.Name)
	}
	return nil
}

func (f *proxyFlags) identity() (*link.Identity, error) {
	t := f.tls
	switch given := t.Cert != "" || t.Key != "" || t.CA != ""; {
	case !given && len(t.Peers) > 0:
		return nil, cli.Usagef("--tls-peer needs --tls-cert, --tls-key and --tls-ca")
	case !given:
		return nil, nil
	case t.Cert == "" || t.Key == "" || t.CA == "":
		return nil, cli.Usagef("--tls-cert, --tls-key and --tls-ca go together")
	case f.insecure:
		return nil, cli.Usagef("--insecure and --tls-cert exclude each other")
	}
	own, err := link.LoadIdentity(t)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert, --tls-key, --tls-ca: %w", err)
	}
	if cert, _ := own.Current(); !identity.GrantsOf(cert.Leaf).Has(identity.ProxyRole) {
		slog.Warn("other hosts' proxies take this one's certificate only where their --tls-peer names it",
			"error", identity.MissingRole(cert.Leaf, identity.GrantsOf(cert.Leaf), identity.ProxyRole, "--tls-peer"))
	}
	return own, nil
}

func newProxyCommand(e env) *cobra.Command {
	var f proxyFlags
	cmd := &cobra.Command{
		Use:   "proxy",
		Short: "Carry the connections of this host's jobs, with fewer bytes",
		Long: `Carry the connections of this host's jobs to the proxies of the hosts where
they go, over which messages take fewer bytes, or directly to hosts without
one. The job notices nothing.

Its listeners come from the host's agent (psidecar agent --intercept), at
--proxy-socket; the proxy itself needs no privileges. --forward gives explicit
listeners, for machines where connections cannot be intercepted. State
(/api/v1/connections) and metrics (/metrics) are served at --http, which changes
nothing; --control-socket takes other rules for values (PUT /api/v1/codecs) from
users of this host who may. SIGTERM ends it in order: connections in use get
--grace.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e.carries()
			return runProxy(cmd.Context(), &f)
		},
	}
	f.relaying(cmd)
	f.routing.planner.addFlags(cmd, "", "host:port of the planner whose rules for values are taken up (--follow-codecs) and, with --act, whose plans are carried out")
	cmd.Flags().StringVar(&f.routing.host, "host", "", "name of this host at the planner, the same as its agent's; default: its hostname")
	cmd.Flags().BoolVar(&f.outlive, "outlive", false, "have the agent hold the job's connections, so that the next proxy goes on with them where this one is killed, without PS_RESEND too; on the proxies of all hosts, with Linux 6.9 and --proxy-socket, and not with --act or --placement; proxy/README.md says what it costs and which connections are not held")
	cmd.Flags().StringVar(&f.socket, "proxy-socket", handover.DefaultSocket, "unix socket at which the agent hands over listeners; empty: none")
	addNames(cmd, &f.names)
	cmd.Flags().StringVar(&f.http, "http", "127.0.0.1:9813", "address of state and metrics; empty: none")
	return cmd
}

func runProxy(ctx context.Context, f *proxyFlags) error {
	cli.LimitMemory()
	switch {
	case f.outlive && f.routing.wanted():
		return cli.Usagef("--outlive does not go with --act or --placement: connections whose requests are routed are not held; leave one of them out")
	case f.outlive && f.socket == "":
		return cli.Usagef("--outlive needs --proxy-socket: the agent there holds the connections")
	}
	opts, err := f.options()
	if err != nil {
		return err
	}
	ports := ports{names: f.names}
	defer ports.close()
	opts.Health = &health.Loops{}
	d, err := f.open(ctx, daemon.Options{Proxy: opts, Socket: f.socket, Outlive: f.outlive}, &ports)
	if err != nil {
		return err
	}
	front, err := ports.page(ctx, "--http", f.http)
	if err != nil {
		return err
	}
	orders := f.orders(d.Proxy(), nil)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return opts.Health.Watch(ctx) })
	g.Go(func() error { return front.Serve(ctx, d.Proxy().Handler(front.Guard, orders)) })
	g.Go(func() error { return orders.ServeAt(ctx, f.controlPath()) })
	g.Go(func() error { f.values.follow(ctx, opts.Values); return nil })
	g.Go(func() error { return d.Run(ctx) })
	return g.Wait()
}

// open opens what a proxy needs besides what o has.
func (f *proxyFlags) open(ctx context.Context, o daemon.Options, ports *ports) (*daemon.Daemon, error) {
	listen := func(flag, address string) (net.Listener, error) { return ports.listen(ctx, flag, address) }
	var err error
	if o.Forward, err = f.forwards(listen); err != nil {
		return nil, err
	}
	if o.Mesh, err = f.meshListeners(listen); err != nil {
		return nil, err
	}
	if o.Routing, err = f.routed(); err != nil {
		return nil, err
	}
	if o.Rules, err = f.rules(); err != nil {
		return nil, err
	}
	return daemon.New(ctx, o)
}

// rules returns the planner whose rules for values are taken up; nil: none.
func (f *proxyFlags) rules() (p *daemon.Planner, err error) {
	r := &f.routing
	if r.planner.Address == "" || !f.follow {
		return nil, nil
	}
	p = &daemon.Planner{Address: r.planner.Address}
	if p.Credentials, err = r.planner.Credentials(); err != nil {
		return nil, err
	}
	p.Host, err = nameOf(r.host)
	return p, err
}

// forwards opens the listeners of --forward.
func (f *proxyFlags) forwards(listen func(flag, addr string) (net.Listener, error)) ([]proxy.Listener, error) {
	var all []proxy.Listener
	for _, pair := range f.forward {
		at, to, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, cli.Usagef("--forward %q: want LISTEN=DEST, each host:port", pair)
		}
		destination, err := net.ResolveTCPAddr("tcp", to)
		if err == nil && (destination.IP == nil || destination.Port == 0) {
			err = errors.New("want host:port")
		}
		if err != nil {
			return nil, cli.Usagef("--forward %q: destination %q: %w", pair, to, err)
		}
		l, err := listen("--forward", at)
		if err != nil {
			return nil, err
		}
		ap := destination.AddrPort()
		slog.Info("forwarding", "from", l.Addr(), "to", ap)
		all = append(all, proxy.Listener{Listener: l, Destination: proxy.Fixed(netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()))})
	}
	return all, nil
}

func (f *proxyFlags) meshListeners(listen func(flag, addr string) (net.Listener, error)) ([]net.Listener, error) {
	addrs := f.mesh
	if len(addrs) == 0 && f.meshPort != 0 {
		addrs = []string{fmt.Sprintf(":%d", f.meshPort)}
	}
	var all []net.Listener
	for _, addr := range addrs {
		l, err := listen("--mesh-listen", addr)
		if err != nil {
			return nil, err
		}
		slog.Info("taking links", "at", l.Addr(), "tls", f.tls.Cert != "")
		all = append(all, l)
	}
	return all, nil
}
