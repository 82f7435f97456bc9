package proxy

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/proxy/codec/compact"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/proxy/payoff"
	"github.com/psidecar/psidecar/proxy/relay"
	"github.com/psidecar/psidecar/test/require"
)

// With --codec auto the line of the codec says on how many connections messages pass, and why.
func TestMeasuresOfCodecAuto(t *testing.T) {
	codec := thresholding(t)
	p := require.Value(New(Options{MeshPort: 9814, Codecs: []relay.Codec{codec}, Auto: true}))(t)
	pays, not := &payoff.Figures{Encodes: true}, &payoff.Figures{}
	l := lineOf(t, p.measures(measuredJob, []carried{
		{codec: values.Name}, // nothing is known yet
		{codec: values.Name, payoff: pays},
		{codec: values.Name, payoff: not},
		{codec: values.Name, payoff: pays, busy: true},
		{codec: values.Name, payoff: not, busy: true},
		{busy: true}, // its other end knows no codec
	}), measure.Compact)
	reasons := map[string]int{}
	for _, g := range l.Not {
		reasons[g.Reason] = g.Connections
	}
	want := map[string]int{fastLink: 1, busyHost: 2, noCodec: 1}
	if l.On != 2 || !maps.Equal(reasons, want) || l.Setting != "--codec auto" {
		t.Errorf("on %d, not: %v; want 2, %v: %+v", l.On, reasons, want, l)
	}
}

// thresholding is a codec that holds back pushed values.
func thresholding(t *testing.T) *values.Codec {
	t.Helper()
	c := require.Value(values.New(values.Options{Compact: compact.DefaultLimits, Rules: []values.Rule{{Threshold: 0.99}}}))(t)
	return c
}

func lineOf(t *testing.T, lines []measure.Line, name string) measure.Line {
	t.Helper()
	at := slices.IndexFunc(lines, func(l measure.Line) bool { return l.Measure == name })
	if at < 0 {
		t.Fatalf("no line of %s: %+v", name, lines)
	}
	return lines[at]
}

const measuredJob = "198.18.0.1:9000"

// The states of connections are summed up in measures: where they hold, on how
// many, and of the others why not.
func TestMeasuresByConnection(t *testing.T) {
	codec := thresholding(t)
	p := require.Value(New(Options{MeshPort: 9814, Values: codec, Codecs: []relay.Codec{codec}}))(t)
	all := []carried{
		{codec: values.Name, to: netip.MustParseAddrPort(measuredJob)}, {codec: values.Name},
		{codec: values.Name, sameHost: true},
		{direct: true, past: noProxy},
		{}, // its other end knows no codec
	}
	for _, c := range []struct {
		measure, state string
		on             int
		reasons        string
	}{
		{measure.Carry, measure.Part, 4, "no_proxy 1"},
		{measure.Compact, measure.Part, 3, "no_codec 1, no_proxy 1"},
		{measure.Threshold, measure.Part, 2, "no_codec 1, no_proxy 1, same_host 1"},
		{measure.Quantize, measure.Off, 0, "not_set 0"},
		{measure.Moves, measure.Off, 0, "not_set 0"},
	} {
		l := lineOf(t, p.measures(measuredJob, all), c.measure)
		var reasons []string
		for _, g := range l.Not {
			reasons = append(reasons, g.Reason+" "+string(rune('0'+g.Connections)))
			if g.Why == "" || g.Do == "" {
				t.Errorf("%s, %s: neither why nor what to do: %+v", c.measure, g.Reason, g)
			}
		}
		if l.State != c.state || l.On != c.on || l.Connections != len(all) || strings.Join(reasons, ", ") != c.reasons {
			t.Errorf("%s: %s, %d of %d, not: %q; want %s, %d, %q", c.measure, l.State, l.On, l.Connections, reasons, c.state, c.on, c.reasons)
		}
	}
	l := lineOf(t, p.measures(measuredJob, all[:2]), measure.Threshold)
	if l.State != measure.On || l.From != "flags" || l.Setting != "--threshold 0.99" {
		t.Errorf("where nothing is in the way: %+v", l)
	}
	l = lineOf(t, p.measures(measuredJob, nil), measure.Threshold)
	if l.State != measure.Off || len(l.Not) != 1 || l.Not[0].Reason != noConnections {
		t.Errorf("without connections: %+v", l)
	}
}

// A threshold that does not end by itself says so where the proxy sees no connection
// to the scheduler, by itself and in the sum of all hosts.
func TestThresholdWithoutBarriersSaysSo(t *testing.T) {
	codec := thresholding(t)
	p := require.Value(New(Options{MeshPort: 9814, Values: codec, Codecs: []relay.Codec{codec}}))(t)
	server, scheduler := carried{codec: values.Name, to: netip.MustParseAddrPort("198.18.0.2:7000")}, carried{direct: true, past: noProxy, to: netip.MustParseAddrPort(measuredJob)}
	said := func(rule values.Rule, all ...carried) bool {
		require.NoError(t, codec.SetRules([]values.Rule{rule}))
		l := lineOf(t, measure.Of(p.measures(measuredJob, all), measuredJob, false), measure.Threshold)
		if l.On != 1 {
			t.Errorf("it holds on %d connections", l.On)
		}
		return slices.ContainsFunc(l.Not, func(g measure.Gap) bool {
			return g.Reason == measure.Barriers && strings.Contains(g.Do, "--threshold-until")
		})
	}
	if !said(values.Rule{Threshold: 0.99}, server) {
		t.Error("nothing is said of barriers that go past the proxy")
	}
	if said(values.Rule{Threshold: 0.99}, server, scheduler) {
		t.Error("a connection to the scheduler that goes through the proxy counts as past it")
	}
	if said(values.Rule{Threshold: 0.99, Until: 100}, server) {
		t.Error("a threshold that ends needs no barrier")
	}
}

// Without certificates and --insecure nothing goes over a link to another host,
// and a threshold that somebody asked for says so.
func TestThresholdWithoutLinksSaysSo(t *testing.T) {
	codec := thresholding(t)
	p := require.Value(New(Options{MeshPort: 9814, Values: codec, Codecs: []relay.Codec{codec}}))(t)
	ok, why := p.mayLink(netip.MustParseAddrPort(measuredJob))
	if ok || why != notConfigured {
		t.Fatalf("a link without TLS: %v, %q", ok, why)
	}
	l := lineOf(t, p.measures(measuredJob, []carried{{direct: true, past: why}}), measure.Threshold)
	if l.State != measure.Off || l.Setting == "" || len(l.Not) != 1 || !strings.Contains(l.Not[0].String(), "--insecure") || !strings.Contains(l.Not[0].String(), "--tls-ca") {
		t.Errorf("%+v", l)
	}
}

// Each measure that a rule can turn on has a line, with what was asked for as it
// would stand on the command line.
func TestMeasuresOfValues(t *testing.T) {
	for name, c := range map[string]struct {
		rule    values.Rule
		setting string
	}{
		measure.Unchanged:     {values.Rule{Unchanged: true}, "--unchanged"},
		measure.Threshold:     {values.Rule{Threshold: 0.99, Auto: true, Until: 500}, "--threshold auto --threshold-until 500"},
		measure.Slim:          {values.Rule{Slim: &values.Slim{Alpha: 0.3, Epsilon: 0.15, Rounds: 20}}, "--slim 0.3,0.15,20"},
		measure.Quantize:      {values.Rule{Quantize: 8}, "--quantize 8"},
		measure.PullThreshold: {values.Rule{PullThreshold: 0.95}, "--pull-threshold 0.95"},
		measure.Activations:   {values.Rule{Activations: 0.95, Row: 16, ActivationsPushed: true}, "--threshold-activations 0.95 --row 16 --activations-pushed"},
		measure.PullQuantize:  {values.Rule{PullQuantize: 4}, "--pull-quantize 4"},
		measure.Wire:          {values.Rule{Wire: "bf16"}, "--wire bf16"},
	} {
		codec := require.Value(values.New(values.Options{Compact: compact.DefaultLimits, Rules: []values.Rule{c.rule}}))(t)
		p := require.Value(New(Options{MeshPort: 9814, Values: codec, Codecs: []relay.Codec{codec}}))(t)
		lines := p.measures(measuredJob, []carried{{codec: values.Name}, {direct: true, past: noProxy}})
		if l := lineOf(t, lines, name); l.State != measure.Part || l.Setting != c.setting || l.From != "flags" || l.On != 1 {
			t.Errorf("%s: %+v; want %q on one of two connections", name, l, c.setting)
		}
		on := 0
		for i := range lines {
			if !slices.Contains(measure.All, lines[i].Measure) {
				t.Errorf("%s is none of the measures", lines[i].Measure)
			}
			if lines[i].On > 0 {
				on++
			}
		}
		if on != 3 { // with carry and compact
			t.Errorf("%s: %d measures hold: %+v", name, on, lines)
		}
	}
}

// A rule that the planner gives counts before those of flags, and is said to be its.
func TestMeasuresByThePlanner(t *testing.T) {
	codec := thresholding(t)
	p := require.Value(New(Options{MeshPort: 9814, Values: codec, Codecs: []relay.Codec{codec}}))(t)
	require.NoError(t, codec.SetPlanned([]values.Rule{{Job: measuredJob, Quantize: 4, Keys: values.Range{First: 5, Last: 9}}, {Job: measuredJob}}))
	all := []carried{{codec: values.Name}}
	l := lineOf(t, p.measures(measuredJob, all), measure.Quantize)
	if l.State != measure.On || l.From != "planner" || l.Setting != "--quantize 4 for keys 5-9" {
		t.Errorf("the planner's: %+v", l)
	}
	if l := lineOf(t, p.measures(measuredJob, all), measure.Threshold); l.State != measure.Off || l.Setting != "" {
		t.Errorf("the flags', which the planner's rules come before: %+v", l)
	}
	if l := lineOf(t, p.measures("198.18.0.9:1", all), measure.Threshold); l.State != measure.On || l.From != "flags" {
		t.Errorf("of another job: %+v", l)
	}
}

// Open connections count as what they are: over a link, and past it; in the
// interface and in metrics.
func TestMeasuresOfOpenConnections(t *testing.T) {
	w, s := thresholding(t), thresholding(t)
	h := newTwoHosts(t, func(worker, server *Options) {
		worker.Values, worker.Codecs = w, []relay.Codec{w}
		server.Values, server.Codecs = s, []relay.Codec{s}
	})
	first := h.dial(t)
	echo(t, first, h.job.next(t))
	state := func() (st State) {
		answer := httptest.NewRecorder()
		h.worker.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/api/v1/connections", nil))
		require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &st))
		return st
	}
	if l := lineOf(t, state().Measures, measure.Threshold); l.State != measure.On || l.On != 1 {
		t.Errorf("over a link: %+v", l)
	}
	h.stopServer()
	first.Close() // the server's proxy may have told it the end, which is not all of the connection's
	h.worker.peers.missed(h.job.addr().Addr(), noProxy)
	second := h.dial(t)
	echo(t, second, h.job.next(t))
	var l measure.Line
	defer func() {
		if t.Failed() {
			t.Logf("the line: %+v; connections %+v", l, state().Connections)
		}
	}()
	require.Eventually(t, "the connection past the mesh counts", func() bool {
		l = lineOf(t, h.worker.Measures(), measure.Threshold)
		return l.State == measure.Off && l.Connections == 1 && len(l.Not) == 1 && l.Not[0].Reason == noProxy
	})
	if c := state().Connections; len(c) != 1 || c[0].Past != noProxy {
		t.Errorf("connections %+v", c)
	}
	answer := httptest.NewRecorder()
	h.worker.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, want := range []string{
		`psidecar_proxy_measure_off_connections{job="",measure="threshold",reason="no_proxy"} 1`,
		`psidecar_proxy_measure_off_connections{job="",measure="slim",reason="not_set"} 1`,
		`psidecar_proxy_measure_connections{job="",measure="threshold",state="off"} 1`,
	} {
		if !strings.Contains(answer.Body.String(), want+"\n") {
			t.Errorf("no metric %s", want)
		}
	}
}

// While what waits is drained, and after that, the line says so rather than that
// nobody asked for a threshold.
func TestMeasuresWhileDraining(t *testing.T) {
	codec := thresholding(t)
	p := require.Value(New(Options{MeshPort: 9814, Values: codec, Codecs: []relay.Codec{codec}}))(t)
	require.NoError(t, codec.SetPlanned([]values.Rule{{Job: measuredJob, End: 50}}))
	for name, says := range map[string]string{measure.Threshold: "the next 50 pushes of each layer", measure.Unchanged: "disabled by psidecar plan codecs drain"} {
		l := lineOf(t, p.measures(measuredJob, []carried{{codec: values.Name}}), name)
		if l.State != measure.Off || len(l.Not) != 1 || l.Not[0].Reason != measure.Draining || !strings.Contains(l.Not[0].Why, says) || !strings.Contains(l.Not[0].Do, "clear") {
			t.Errorf("%s: %+v", name, l)
		}
	}
}

// A job whose pushes a threshold does not fit is said to be without it, and why.
func TestThresholdThatFitsNoPushSaysSo(t *testing.T) {
	for _, why := range values.Reasons {
		g := unfitting(why, 3)
		if g.Connections != 3 || g.Reason != unfit || g.Why == "" || g.Do == "" {
			t.Errorf("%s: %+v", why, g)
		}
	}
	codec := thresholding(t)
	p := require.Value(New(Options{MeshPort: 9814, Values: codec, Codecs: []relay.Codec{codec}}))(t)
	sender, receiver, err := codec.Open(relay.Link{
		ID: 1, Dialer: relay.Instance{1}, Acceptor: relay.Instance{2}, Dialed: true, HeadLimit: relay.HeadLimit, Memory: relay.NewMemory(1 << 20),
		Client: netip.MustParseAddrPort("198.18.0.1:40000"), Destination: netip.MustParseAddrPort("198.18.0.2:9001"), Origin: "here", Job: measuredJob,
	}, codec.Offer())
	require.NoError(t, err)
	defer sender.Close()
	defer receiver.Close()
	sender.(relay.Greeter).Ready(zmtp.Ready{Identity: []byte("ps9")})
	all := []carried{{codec: values.Name}, {codec: values.Name}}
	if l := lineOf(t, p.measures(measuredJob, all), measure.Threshold); l.State != measure.On || l.On != 2 {
		t.Errorf("before any push: %+v", l)
	}
	push := pslite.Meta{Timestamp: 1, Request: true, Push: true, DataTypes: []pslite.DataType{pslite.Uint64, pslite.Other}}
	sender.Encode(nil, &relay.Message{Frames: [][]byte{push.Append(nil, pslite.DMLC), pslite.AppendKeys(nil, []uint64{3}), make([]byte, 4*700)}})
	l := lineOf(t, p.measures(measuredJob, all), measure.Threshold)
	if l.State != measure.Off || l.On != 0 || len(l.Not) != 1 || l.Not[0].Reason != unfit || !strings.Contains(l.Not[0].Do, "--char-values") {
		t.Errorf("after a push of no known type: %+v", l)
	}
	if l := lineOf(t, p.measures("198.18.0.9:1", all), measure.Threshold); l.State != measure.On {
		t.Errorf("another job: %+v", l)
	}
}
