package proxy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/psidecar/psidecar/internal/policy"
	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/proxy/codec/values"
	"github.com/psidecar/psidecar/proxy/jobs"
	"github.com/psidecar/psidecar/proxy/migrate"
	"github.com/psidecar/psidecar/proxy/payoff"
)

// Reasons why a measure does not hold, besides those for which connections bypass the mesh.
const (
	noCodec       = "no_codec"       // the link has none
	unwanted      = "unwanted"       // the job's owner does not want it
	sameHost      = "same_host"      // the connection crosses no network
	noMesh        = "no_mesh"        // --mesh-port 0, or the connection is to a mesh port
	noConnections = "no_connections" // the proxy carries none of the job
	handlerless   = "handler"        // what the servers do with a push is not known, or rules moves out
	notReady      = "not_ready"      // the job's hosts have not found each other yet
	unfit         = "unfit"          // no push of the job's could be thresholded
	fastLink      = "fast_link"      // encoding would take longer than it saves
	busyHost      = "busy_host"      // the host's processors are busy or the proxy is throttled, and the job is faster without encoding
)

// carried is the state of an open connection that a process of this host has made, as far as
// measures depend on it. It is collected once for all measures, so that the lines of one
// answer agree.
//
// A measure is something that a flag, a rule or a job's owner turns on: carrying connections
// at all, a codec, a threshold, moves and so on. For each job and measure there is a line
// that counts the connections on which it holds and gives, for the others, the reason and
// what an operator can do. Connections from other hosts are left out: the host that made a
// connection reports it, so that a fleet's lines can be added up.
type carried struct {
	job      string // scheduler's address; empty: unknown
	direct   bool
	past     string // why it is direct
	codec    string
	sameHost bool
	none     bool // the job's owner wants no codec
	to       netip.AddrPort
	summed   summed
	payoff   *payoff.Figures // nil: messages are encoded in any case, or nothing is known yet
	busy     bool            // messages pass as they are, since the host's processors are busy
}

// Measures returns, for each job that has open connections or whose requests are routed,
// which measures hold and why others do not.
func (p *Proxy) Measures() []measure.Line {
	byJob := map[string][]carried{}
	for job := range p.routed() {
		byJob[job] = nil
	}
	for _, c := range p.carried() {
		byJob[c.job] = append(byJob[c.job], c)
	}
	var lines []measure.Line
	for job, all := range byJob {
		lines = append(lines, p.measures(job, all)...)
	}
	measure.Sort(lines)
	return lines
}

// MeasuresOf is [Proxy.Measures] for one job, which need not have connections here.
func (p *Proxy) MeasuresOf(job string, only bool) []measure.Line {
	if lines := measure.Of(p.Measures(), job, only); len(lines) > 0 {
		return lines
	}
	return p.measures(job, nil)
}

// routed returns the states of jobs whose requests are routed.
func (p *Proxy) routed() map[string]jobs.State {
	states := map[string]jobs.State{}
	if p.opts.Jobs != nil {
		for _, s := range p.opts.Jobs.States() {
			states[s.Job] = s
		}
	}
	return states
}

// carried returns the open connections that processes of this host have made. A listener may
// not know the job; then it is that of another connection of the same origin.
func (p *Proxy) carried() []carried {
	var list []carried
	var origins []string
	named := map[string]string{}
	for _, c := range p.conns.openConnections() {
		if c.kind == kindAccepted {
			continue // the dialer's host reports it
		}
		job := c.job
		// The codec for values has seen the node table, which names the job.
		if job == "" && p.opts.Values != nil {
			job = p.opts.Values.JobOf(c.origin)
		}
		if job != "" {
			named[c.origin] = job
		}
		one := carried{job: job, direct: c.kind == kindDirect, past: c.past, codec: c.codec, sameHost: c.within, to: c.destination, summed: c.summed()}
		one.none = p.opts.Titles.Of(c.origin, c.job).Wishes.Codec == noneCodec
		if c.pipe.Payoff != nil {
			one.payoff, one.busy = c.pipe.Payoff.Figures(), c.pipe.Payoff.Load.Passes()
		}
		list = append(list, one)
		origins = append(origins, c.origin)
	}
	for i := range list {
		// Named by a connection of the same origin that was seen later.
		list[i].job = cmp.Or(list[i].job, named[origins[i]])
	}
	return list
}

// measures returns a line for each measure, of one job and its connections.
func (p *Proxy) measures(job string, all []carried) []measure.Line {
	lines := []measure.Line{p.line(job, measure.Carry, all, func(c *carried) *measure.Gap { return past(c) })}
	lines = append(lines, p.compactLine(job, all))
	var held, local []values.Held
	if p.opts.Values != nil {
		held, local = p.opts.Values.Held(job, false), p.opts.Values.Held(job, true)
	}
	for _, m := range valueMeasures {
		l := p.valueLine(job, all, m, held, local)
		if m.name == measure.Threshold && p.opts.Values != nil { // also while it is ending, or has ended
			d := p.opts.Values.DelayOf(job, l.Setting == "")
			l.HeldValues, l.HeldSquares, l.StepSquares = uint64(d.Values), d.Squares, d.Step
		}
		lines = append(lines, l)
	}
	return append(lines, p.sumsLine(job, all), p.placementLine(job, all), p.movesLine(job, all), p.splitLine(job, all))
}

// line makes the line of a measure from its connections: lacks returns why the measure does
// not hold on one, and nil where it does.
func (p *Proxy) line(job, name string, all []carried, lacks func(*carried) *measure.Gap) measure.Line {
	l := measure.Line{Job: job, Measure: name, Connections: len(all)}
	for i := range all {
		g := lacks(&all[i])
		if g == nil {
			l.On++
			continue
		}
		// Gaps with the same reason are added up by Lack.
		g.Connections = 1
		l.Lack(*g)
	}
	// A measure that is set and has no connection would otherwise look like one that holds
	// everywhere.
	if len(all) == 0 {
		l.Lack(measure.Gap{Reason: noConnections, Why: "no connection of the job goes through this proxy",
			Do: "connections older than the proxy, and those to 127.0.0.1 and ::1, are never carried; see the agent's carry line"})
	}
	l.Judge()
	return l
}

// past returns why a connection is direct; nil: it is not.
func past(c *carried) *measure.Gap {
	switch {
	case !c.direct:
		return nil
	case c.past == "":
		return &measure.Gap{Reason: noMesh, Why: "direct: this proxy makes no links", Do: "start this proxy with --mesh-port"}
	case c.past == notConfigured:
		return &measure.Gap{Reason: notConfigured, Why: "direct: links to other hosts need TLS or --insecure",
			Do: "set --tls-ca, --tls-cert and --tls-key on all hosts (psidecar certs issues the files), or on a trusted network --insecure; then restart the job"}
	case c.past == noProxy:
		return &measure.Gap{Reason: noProxy, Why: "direct: no proxy answered at the mesh port of the other host",
			Do: "start psidecar up (or agent --intercept and proxy) there, with the same --mesh-port, before the job; a connection stays direct until it breaks"}
	}
	return &measure.Gap{Reason: c.past, Why: "direct: the link to the other host's proxy failed (" + c.past + ")", Do: "see both proxies' logs; docs/troubleshooting.md lists the reasons"}
}

// encoded returns why a connection has no codec; nil: it has one.
func (p *Proxy) encoded(c *carried) *measure.Gap {
	switch {
	case c.direct:
		return past(c)
	case c.codec != "":
		return nil
	case c.none:
		return &measure.Gap{Reason: unwanted, Why: "the job's owner disabled codecs", Do: "see psidecar.io/codec and PSIDECAR_CODEC"}
	case len(p.opts.Codecs) == 0:
		return &measure.Gap{Reason: measure.NotSet, Why: "this proxy has no codec", Do: "start it with --codec compact"}
	}
	return &measure.Gap{Reason: noCodec, Why: "the other host's proxy supports none of this proxy's codecs", Do: "use --codec compact and the same version there"}
}

// compactLine returns the line of the codec for keys.
func (p *Proxy) compactLine(job string, all []carried) measure.Line {
	l := p.line(job, measure.Compact, all, func(c *carried) *measure.Gap {
		g := p.encoded(c)
		switch {
		case g == nil && c.busy:
			return &measure.Gap{Reason: busyHost, Why: "this host's processors are busy or the proxy's CPU limit is reached, and the job sends more messages when they are not encoded", Do: "--codec compact encodes in any case"}
		case g != nil || c.payoff == nil || c.payoff.Encodes:
			return g
		}
		return &measure.Gap{Reason: fastLink, Why: "the link is fast, so encoding takes longer than it saves", Do: "--codec compact encodes in any case"}
	})
	switch {
	case len(p.opts.Codecs) == 0:
	case p.codecAsked(job) != "":
		l.Setting, l.From = "codec "+p.codecAsked(job), measure.Asked
	case p.opts.Auto:
		l.Setting, l.From = "--codec auto", "flags"
	default:
		l.Setting, l.From = "--codec compact", "flags"
	}
	return l
}

// valueMeasure is a measure that a rule for values turns on.
type valueMeasure struct {
	name, flag string
	set        func(*values.Rule) string // the rule's setting as on the command line; empty: the rule does not set it
}

// valueMeasures lists the measures that rules turn on, in the order of their lines.
var valueMeasures = []valueMeasure{
	{measure.Unchanged, "--unchanged", func(r *values.Rule) string { return map[bool]string{true: "--unchanged"}[r.Unchanged] }},
	{measure.Threshold, "--threshold 0.99", func(r *values.Rule) string {
		if r.Threshold == 0 {
			return ""
		}
		text := "--threshold " + strconv.FormatFloat(r.Threshold, 'g', -1, 64)
		if r.Auto {
			text = "--threshold " + policy.Auto
		}
		if r.Until > 0 {
			text += " --threshold-until " + strconv.Itoa(r.Until)
		}
		return text
	}},
	{measure.Slim, "--slim 0.3,0.15", func(r *values.Rule) string {
		if r.Slim == nil {
			return ""
		}
		return fmt.Sprintf("--slim %v,%v,%d%s", r.Slim.Alpha, r.Slim.Epsilon, r.Slim.Rounds, map[bool]string{true: ",changes"}[r.Slim.Changes])
	}},
	{measure.Quantize, "--quantize 8", func(r *values.Rule) string {
		if r.Quantize == 0 {
			return ""
		}
		return "--quantize " + strconv.Itoa(r.Quantize)
	}},
	{measure.PullThreshold, "--pull-threshold 0.95", func(r *values.Rule) string {
		if r.PullThreshold == 0 {
			return ""
		}
		return "--pull-threshold " + strconv.FormatFloat(r.PullThreshold, 'g', -1, 64)
	}},
	{measure.PullQuantize, "--pull-quantize 4", func(r *values.Rule) string {
		if r.PullQuantize == 0 {
			return ""
		}
		return "--pull-quantize " + strconv.Itoa(r.PullQuantize)
	}},
	{measure.Activations, "--threshold-activations 0.95", func(r *values.Rule) string {
		if r.Activations == 0 {
			return ""
		}
		text := "--threshold-activations " + strconv.FormatFloat(r.Activations, 'g', -1, 64)
		if r.Row > 0 {
			text += " --row " + strconv.Itoa(r.Row)
		}
		if r.ActivationsPushed {
			text += " --activations-pushed"
		}
		return text
	}},
	{measure.Wire, "--wire bf16", func(r *values.Rule) string {
		if r.Wire == "" {
			return ""
		}
		return "--wire " + r.Wire
	}},
}

// valueLine returns the line of a measure that rules turn on. held are the rules for
// connections to other hosts, local those for connections within the host.
func (p *Proxy) valueLine(job string, all []carried, m valueMeasure, held, local []values.Held) measure.Line {
	setting, from := m.asked(held)
	// Nobody asks for it: the line says so once, and not for each connection.
	if setting == "" {
		l := measure.Line{Job: job, Measure: m.name, Connections: len(all)}
		l.Lack(m.unset(held))
		l.Judge()
		return l
	}
	// To connections within a host not all rules apply.
	within, _ := m.asked(local)
	l := p.line(job, m.name, all, func(c *carried) *measure.Gap {
		switch g := p.encoded(c); {
		case g != nil:
			return g
		case c.codec != values.Name:
			return &measure.Gap{Reason: noCodec, Why: "the other host's proxy does not support codecs for values", Do: "use the same version there"}
		case c.sameHost && within == "":
			return &measure.Gap{Reason: sameHost, Why: "within this host, where it saves no network traffic", Do: "--same-host applies it there too"}
		}
		return nil
	})
	l.Setting, l.From = setting, from
	// A threshold can be on and do nothing, or be about to lose values at the job's end. Both
	// are worth a gap, although the rule holds.
	if m.name == measure.Threshold && l.On > 0 {
		if why, unfit := p.opts.Values.Unfit(job); unfit {
			l.Lack(unfitting(why, l.On))
			l.On = 0
			l.Judge()
		} else if waitsToTheEnd(held) {
			unseen(job, all, &l)
		}
	}
	return l
}

// unfitting returns the gap of a threshold that is set but holds nothing back of a job's
// pushes, on that many connections.
func unfitting(why values.Reason, connections int) measure.Gap {
	g := measure.Gap{Reason: unfit, Connections: connections, Do: "disable the threshold for this job, which does not suit it"}
	switch why {
	case values.ReasonUnpulled:
		g.Why = "no push could be thresholded so far: each is for keys that its worker has not pulled, or the first of its keys, and may carry initial values"
		g.Do = "wait if workers still push initial values; if they never pull the keys that they push, use psidecar plan codecs set --threshold-unpulled"
	case values.ReasonAssigned:
		g.Why = "the servers assign pushes, and would store zeros for values that are held back"
	case values.ReasonType:
		g.Why = "no push could be thresholded: the type of its values is unknown"
		g.Do = "set the type with --char-values float32 of psidecar proxy, up or plan codecs set"
	default:
		g.Why = "no push could be thresholded so far (" + string(why) + ")"
		g.Do = "see docs/troubleshooting.md for the meaning and what to do"
	}
	return g
}

// waitsToTheEnd reports whether something may be held back under a rule when a worker ends.
func waitsToTheEnd(held []values.Held) bool {
	return slices.ContainsFunc(held, func(h values.Held) bool { return h.Rule.Threshold > 0 && h.Rule.Until == 0 && h.Rule.End == 0 })
}

// unseen adds a gap where no connection to the job's scheduler passes this proxy: it does not
// see the last barrier then.
func unseen(job string, all []carried, l *measure.Line) {
	scheduler, err := netip.ParseAddrPort(job)
	// A job that is not known by its scheduler's address cannot be checked.
	if err != nil || slices.ContainsFunc(all, func(c carried) bool { return c.to == scheduler }) {
		return
	}
	l.Lack(measure.Gap{Reason: measure.Barriers,
		Why: "no connection to the job's scheduler goes through this proxy: it cannot hold back its workers' last barrier until their servers have the residuals, which may be lost",
		Do:  "start the sidecars before the job, or end the threshold before the job ends: --threshold-until, psidecar plan codecs drain"})
}

// unset returns why a measure does not hold that no rule asks for.
func (m *valueMeasure) unset(held []values.Held) measure.Gap {
	// While a drain is in effect no rule asks for the measure, but one explains why.
	at := slices.IndexFunc(held, func(h values.Held) bool { return h.Rule.Drains() })
	if at < 0 {
		return measure.Gap{Reason: measure.NotSet, Why: "not enabled", Do: m.flag + " of psidecar up and proxy, or psidecar plan codecs set " + m.flag}
	}
	why := "disabled by psidecar plan codecs drain"
	if m.name == measure.Threshold {
		why += fmt.Sprintf(": residuals are sent with the next %d pushes of each layer", held[at].Rule.End)
	}
	return measure.Gap{Reason: measure.Draining, Why: why, Do: "psidecar plan codecs set " + m.flag + " enables it; psidecar plan codecs clear returns to the flags"}
}

// routedLine returns the line of a measure that has keys elsewhere than the job has them. It
// holds where connections go over a link and the job's hosts know each other; unset is why it
// does not where its flag was not given.
func (p *Proxy) routedLine(job, name, flag string, all []carried, unset *measure.Gap) measure.Line {
	if unset != nil {
		l := measure.Line{Job: job, Measure: name, Connections: len(all)}
		l.Lack(*unset)
		l.Judge()
		return l
	}
	l := p.line(job, name, all, past)
	l.Setting, l.From = flag, "flags"
	p.routing(job, &l)
	return l
}

// placementLine returns the line of --placement.
func (p *Proxy) placementLine(job string, all []carried) measure.Line {
	var unset *measure.Gap
	if p.opts.Jobs == nil || !p.opts.Jobs.Placed() {
		unset = &measure.Gap{Reason: measure.NotSet, Why: "keys are at home", Do: "--placement placement.json, written by psidecar partition --out"}
	}
	l := p.routedLine(job, measure.Placement, "--placement", all, unset)
	if s := p.routed()[job]; unset == nil && s.Stays == "slicer" {
		l.Lack(measure.Gap{Reason: s.Stays, Why: s.StaysWhy + ": keys asked of another server than their home are not placed"})
	}
	return l
}

// movesLine returns the line of --act. Keys of servers whose handler is unknown do not move,
// whatever connections are like.
func (p *Proxy) movesLine(job string, all []carried) measure.Line {
	var unset *measure.Gap
	if p.opts.Jobs == nil || !p.opts.Jobs.Moves() {
		unset = &measure.Gap{Reason: measure.NotSet, Why: "this proxy does not carry out plans", Do: "set --act and --planner on all hosts before the job starts"}
	}
	l := p.routedLine(job, measure.Moves, "--act", all, unset)
	// Of a job whose keys stay all together the handler is not found out.
	if s, ok := p.routed()[job]; unset == nil && ok && (s.Stays == "" || s.Stays == "commands") && s.Handler != migrate.Adds.String() && s.Handler != migrate.Assigns.String() {
		l.On = 0
		l.Lack(measure.Gap{Reason: handlerless, Why: "the servers' handler is " + s.Handler, Do: "set --handler add or assign if that is what they do, or --allow-probe to detect it"})
		l.Judge()
	}
	if s := p.routed()[job]; unset == nil && s.Stays != "" {
		// Of several tables the keys of some may move.
		if s.Stays != "commands" {
			l.On = 0
		}
		l.Lack(measure.Gap{Reason: s.Stays, Why: s.StaysWhy})
		l.Judge()
	}
	return l
}

// routing adds what keeps the job's requests from being routed.
func (p *Proxy) routing(job string, l *measure.Line) {
	s, ok := p.routed()[job]
	switch {
	case !ok:
		return
	case s.Trouble != "":
		l.Lack(measure.Gap{Reason: "trouble", Why: s.Trouble})
	case !s.Ready && len(s.Joining) > 0:
		l.Lack(measure.Gap{Reason: notReady, Why: "waiting for hosts: " + strings.Join(s.Joining[:min(len(s.Joining), 4)], ", "), Do: "run a proxy with the same flags on each"})
	default:
		return
	}
	l.On = 0
	l.Judge()
}
