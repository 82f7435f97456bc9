package daemon

import (
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/handover"
	"github.com/psidecar/psidecar/internal/identity"
	"github.com/psidecar/psidecar/internal/policy"
	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/codec/shared"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/proxy/payoff"
)

// Settings determine what a proxy does, in the words of the flags of psidecar proxy and up:
// each field is a flag's value. [Settings.Options] checks them and reads the files that they
// name, and [Settings.Open] opens the listeners. Neither changes anything outside this
// process but for those listeners, so a faulty command line leaves no trace.
//
// Settings that contradict each other are errors, and so are those that would silently do
// nothing: whoever sets a flag expects an effect.
type Settings struct {
	Forward           []string // LISTEN=DEST, each host:port
	Mesh              []string // host:port at which links are taken; empty: MeshPort
	Codecs            []string
	Allow             []string // CIDRs that other proxies may reach
	Ports             []string // ports and ranges of them that other proxies may reach
	MeshPort          uint16   // 0: no links
	TLS               link.Files
	Insecure          bool
	MeshOnly          bool
	Retry, Grace      time.Duration
	PeerGrace         time.Duration
	Patience          time.Duration
	Mark, Connections int
	Memory            int64
	Share             string // true, false or [ShareAuto]
	ShareLeast        int    // bytes of values
	Aggregate         string // [AggregateNone] and so on
	AggregateWait     time.Duration
	AggregateLeast    int // bytes of values
	Values            RuleFlags
	Outlive           bool // the agent holds connections for the next proxy
	Routing           RoutingSettings
}

// Options returns the proxy's options, except for what Open adds. An error of the settings'
// own is a [cli.UsageError].
func (f *Settings) Options() (proxy.Options, error) {
	o := proxy.Options{
		MeshPort: f.MeshPort, Insecure: f.Insecure, MeshOnly: f.MeshOnly,
		Retry: f.Retry, PeerGrace: f.PeerGrace, PeerPatience: f.Patience, Grace: f.Grace, Mark: f.Mark, MaxConnections: f.Connections, MemoryBytes: f.Memory,
	}
	switch {
	case f.Connections < 1:
		return o, cli.Usagef("--max-connections %d: want at least 1", f.Connections)
	case f.Memory < proxy.LeastMemory:
		return o, cli.Usagef("--proxy-memory %d: want at least %d bytes, the size of the largest message from another proxy", f.Memory, proxy.LeastMemory)
	case f.Retry < 0 || f.Grace < 0 || f.PeerGrace < 0 || f.Patience < 0:
		return o, cli.Usagef("--no-proxy-retry, --peer-grace, --peer-patience and --grace cannot be negative")
	case f.MeshPort == 0 && f.MeshOnly:
		return o, cli.Usagef("--mesh-only with --mesh-port 0 would refuse everything")
	}
	if err := f.Routing.check(); err != nil {
		return o, err
	}
	for _, cidr := range f.Allow {
		// A single address needs a prefix length, too: /32 or /128.
		prefix, err := netip.ParsePrefix(cidr)
		if err != nil {
			return o, cli.Usagef("--mesh-allow %q: want an address and a prefix length, such as 10.0.0.0/8", cidr)
		}
		o.Allow = append(o.Allow, prefix)
	}
	// Without a state folder the next proxy does not know which hosts have one.
	if f.Routing.Dir != "" {
		o.PeersFile = filepath.Join(f.Routing.Dir, "peers")
	}
	var err error
	if o.Reach.Ports, err = portRanges(f.Ports); err != nil {
		return o, err
	}
	o.Trials = &payoff.Trials{}
	if err = f.namedCodecs(&o); err != nil {
		return o, err
	}
	if err = f.aggregates(&o); err != nil {
		return o, err
	}
	o.TLS, err = f.identity()
	return o, err
}

// portRanges parses --mesh-ports: single ports, FIRST-LAST, and any.
func portRanges(all []string) (ranges []proxy.PortRange, err error) {
	for _, text := range all {
		// Any process that listens on this host can then be reached by other proxies.
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

// ShareAuto has pulled values be shared where that is not slower.
const ShareAuto = "auto"

// AutoCodec, the default of --codec, is the same codec where package payoff finds that it pays.
const AutoCodec = "auto"

// DefaultSocket is where an agent hands over listeners by default.
const DefaultSocket = handover.DefaultSocket

// CompactCodec encodes all messages.
const CompactCodec = compact.Name

// namedCodecs sets the codecs of --codec in o. With compact comes the codec for values, which
// is compact's where no rule says otherwise; it is preferred, so that rules can be added
// while connections last.
func (f *Settings) namedCodecs(o *proxy.Options) error {
	rules, err := f.Values.rules()
	if err != nil {
		return err
	}
	if at := slices.IndexFunc(rules, func(r values.Rule) bool { return r.Threshold > 0 || r.Slim != nil }); at >= 0 && f.Routing.Handler == "assign" {
		name := "threshold"
		if rules[at].Slim != nil {
			name = "slim"
		}
		return cli.Usagef("--%s, or a rule with %[1]s, and --handler assign exclude each other: servers that assign would store zeros for the values left out of a push; omit %[1]s, or correct --handler if the servers add pushes", name)
	}
	// Both codecs get the same limits, since either may be used with a given peer.
	limits := compact.DefaultLimits
	switch f.Share {
	case ShareAuto:
		limits.ShareTrials = o.Trials
	case "true":
	case "false":
		limits.SharedBytes = 0
	default:
		return cli.Usagef("--share-pulls %q: want true, false or %s", f.Share, ShareAuto)
	}
	limits.ShareLeast = f.ShareLeast
	if f.ShareLeast < shared.Fewest {
		return cli.Usagef("--share-least %d: want %d bytes or more", f.ShareLeast, shared.Fewest)
	}
	o.Titles = &policy.Titles{}
	for _, name := range f.Codecs {
		switch name {
		case "none", "":
		// Auto is the same codec, with a decision for each message.
		case compact.Name, AutoCodec:
			o.Auto = name == AutoCodec
			o.Spares = o.Auto && f.Share == ShareAuto
			if o.Values, err = values.New(values.Options{
				Compact: limits, StateBytes: f.Values.Memory, Rules: rules, Titles: o.Titles, Adds: f.Routing.Handler == "add", Assigns: f.Routing.Handler == "assign",
				Folder: filepath.Join(f.Routing.Dir, values.Folder),
			}); err != nil {
				return cli.UsageError{Err: err}
			}
			// Beside the jobs' folders, so that one --state-dir is everything that the next
			// proxy needs.
			o.ValuesFile = filepath.Join(f.Routing.Dir, "values.waiting")
			// In order of preference: an older peer may know compact only.
			o.Codecs = append(o.Codecs, o.Values, compact.New(limits))
		default:
			return cli.Usagef("--codec %q: want %s, %s or none", name, AutoCodec, compact.Name)
		}
	}
	// Rules that nothing applies would look as if they were in effect.
	if o.Values == nil && len(rules) > 0 {
		return cli.Usagef("--codec %s with rules for values: they need --codec %s or %s", strings.Join(f.Codecs, ","), AutoCodec, compact.Name)
	}
	return nil
}

// identity returns the identity of the TLS files, and nil where there are none. All three
// files go together.
func (f *Settings) identity() (*link.Identity, error) {
	t := f.TLS
	switch given := t.Cert != "" || t.Key != "" || t.CA != ""; {
	// Without certificates the patterns would silently protect nothing.
	case !given && len(t.Peers) > 0:
		return nil, cli.Usagef("--tls-peer needs --tls-cert, --tls-key and --tls-ca")
	case !given:
		return nil, nil
	case t.Cert == "" || t.Key == "" || t.CA == "":
		return nil, cli.Usagef("--tls-cert, --tls-key and --tls-ca go together")
	// --insecure says that links may be plain, which certificates rule out.
	case f.Insecure:
		return nil, cli.Usagef("--insecure and --tls-cert exclude each other")
	}
	own, err := link.LoadIdentity(t)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert, --tls-key, --tls-ca: %w", err)
	}
	// Only a warning: the other hosts may accept it by name.
	if cert, _ := own.Current(); !identity.GrantsOf(cert.Leaf).Has(identity.ProxyRole) {
		slog.Warn("this proxy's certificate has no proxy role; proxies on other hosts accept it only if their --tls-peer matches it",
			"error", identity.MissingRole(cert.Leaf, identity.GrantsOf(cert.Leaf), identity.ProxyRole, "--tls-peer"))
	}
	return own, nil
}
