package proxy

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/psidecar/psidecar/proxy/aggregate"
	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/link"
	"github.com/psidecar/psidecar/proxy/payoff"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/test/require"
)

// A proxy can be spared while nothing but codecs where they pay is asked of it, and no more once
// it was.
func TestProxyThatCanBeSpared(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Options)
		want   bool
	}{
		"by default":        {func(*Options) {}, true},
		"flags say no":      {func(o *Options) { o.Spares = false }, false},
		"encodes always":    {func(o *Options) { o.Auto = false }, false},
		"routes":            {func(o *Options) { o.Jobs = &jobs.Jobs{} }, false},
		"sums":              {func(o *Options) { o.Aggregate, _ = aggregate.New(aggregate.Options{}) }, false},
		"protects links":    {func(o *Options) { o.TLS = &link.Identity{} }, false},
		"keeps to the mesh": {func(o *Options) { o.MeshOnly = true }, false},
	} {
		codec := require.Value(values.New(values.Options{Compact: compact.DefaultLimits}))(t)
		o := Options{Auto: true, Spares: true, Values: codec}
		c.change(&o)
		p := require.Value(New(o))(t)
		if got := p.Spares(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		require.NoError(t, codec.SetRules([]values.Rule{{Threshold: 0.9}}))
		if p.Spares() {
			t.Errorf("%s: with a rule for values", name)
		}
		require.NoError(t, codec.SetRules(nil))
		if p.Spares() {
			t.Errorf("%s: values may wait", name)
		}
	}
}

// A proxy that is known to be there gets longer to answer: met by this one, or found by the agent.
func TestPatience(t *testing.T) {
	host := netip.MustParseAddr("192.0.2.1")
	for name, c := range map[string]struct {
		spares, met bool
		want        time.Duration
	}{
		"nothing is known":     {false, false, time.Second},
		"met":                  {false, true, 10 * time.Second},
		"found by the agent":   {true, false, 10 * time.Second},
		"found by both, later": {true, true, 10 * time.Second},
	} {
		p := require.Value(New(Options{Auto: true, Spares: c.spares, ConnectTimeout: time.Second}))(t)
		if c.met {
			p.peers.met(host)
		}
		if got := p.dialerTo(host).ConnectTimeout; got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// Connections are not needed here if encoding has not paid for a minute on any to the same host.
// Those that another proxy opened are that one's to judge.
func TestUnneeded(t *testing.T) {
	p := require.Value(New(Options{Auto: true, Spares: true}))(t)
	// On a link of 1 ns a byte, what 100 bytes less cost is 1 ms.
	poor, unknown := &payoff.Meter{Path: &payoff.Path{}}, &payoff.Meter{Path: &payoff.Path{}}
	for i := range uint64(3) {
		poor.Path.Add(payoff.Sample{}, payoff.Sample{DeliveryRate: 1e9, BytesSent: 1e6, Messages: i + 1})
	}
	spare := func(saved int, n int) {
		for range n {
			poor.Encoded(time.Unix(1, 0), saved, time.Millisecond)
		}
	}
	spare(100, 8)
	for i, c := range []struct {
		host byte
		*connection
	}{
		{1, &connection{kind: kindLink, pipe: relay.Conn{Payoff: poor}}},
		{1, &connection{kind: kindLink, pipe: relay.Conn{Payoff: unknown}}},
		{1, &connection{kind: kindDirect}},
		{2, &connection{kind: kindLink, pipe: relay.Conn{Payoff: unknown}}},
		{3, &connection{kind: kindLink}},
		{3, &connection{kind: kindDirect}},
		{4, &connection{kind: kindDirect}},
		{4, &connection{kind: kindAccepted, pipe: relay.Conn{Payoff: poor}}},
	} {
		c.origin, c.client = "cgroup 1 netns 7", netip.AddrPortFrom(netip.IPv6Loopback(), uint16(i))
		c.destination = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, c.host}), 9000)
		c.scope.Netns = 7
		c.id = uint64(i)
		p.conns.open[c.id] = c.connection
	}
	want := func(at int, ports ...uint16) {
		t.Helper()
		var got []uint16
		for _, s := range p.Unneeded(time.Unix(int64(at), 0)) {
			if got = append(got, s.Address.Port()); s.Netns != 7 {
				t.Errorf("at %d s: %+v", at, s)
			}
		}
		if !slices.Equal(got, ports) {
			t.Errorf("at %d s: those from %v, want %v", at, got, ports)
		}
	}
	want(0)
	want(60)
	want(61, 0, 1, 2, 3, 6)
	spare(1e8, 30) // now it pays
	want(62, 3, 6)
	spare(0, 100)
	want(122, 3, 6)
	want(123, 0, 1, 2, 3, 6)
	p.opts.MeshOnly = true
	want(124)
}
