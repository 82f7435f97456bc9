package proxy

import (
	"cmp"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/proxy/aggregate"
)

// sumRules has the planner's rules on sums, by job. Readers take no lock: a new map replaces
// the old one.
type sumRules struct {
	all atomic.Pointer[map[string][]measure.SumRule]
}

// rulesOf returns the rules of a job, under the first of its names that has any.
func (s *sumRules) rulesOf(names ...string) []measure.SumRule {
	all := s.all.Load()
	if all == nil {
		return nil
	}
	for _, name := range names {
		if rules := (*all)[name]; name != "" && len(rules) > 0 {
			return rules
		}
	}
	return nil
}

// SetSums replaces the planner's rules on whether pushes are summed, by job. The proxy owns
// the map from then on.
func (p *Proxy) SetSums(rules map[string][]measure.SumRule) { p.sums.all.Store(&rules) }

// aggregates reports whether to sum a connection's pushes of keys in a range; job is its
// scheduler according to the node table. The job's owner decides before the planner, and the
// planner before the flags.
func (p *Proxy) aggregates(c *connection, job string, keys measure.KeyRange) bool {
	title := p.opts.Titles.Of(c.origin, c.job)
	switch title.Wishes.Aggregate {
	case measure.SumHost:
		return true
	case measure.SumNone:
		return false
	}
	return measure.DecideSums(p.sums.rulesOf(c.job, job, title.Name), keys, !p.opts.AggregateAsked)
}

// summed is the state of summing for a connection's pushes; said is false where it has had
// none.
type summed struct {
	why  string // why they are not summed; empty: they are
	said bool
}

// summed returns the state of summing for the connection's pushes.
func (c *connection) summed() (s summed) {
	if q := c.sums.Load(); q != nil {
		s.why, s.said = q.Said()
	}
	return s
}

// noPushes is the reason of a job without pushes to sum.
const noPushes = "no_pushes"

// sumsLine returns a job's line on summed pushes, from its connections that have had a push
// large enough to be summed.
func (p *Proxy) sumsLine(job string, all []carried) measure.Line {
	var pushing []carried
	for _, c := range all {
		if c.summed.said {
			pushing = append(pushing, c)
		}
	}
	l := measure.Line{Job: job, Measure: measure.Aggregate}
	l.Setting, l.From = p.sumsAsked(job)
	switch {
	case p.opts.Aggregate == nil && l.From == "planner":
		l.Setting, l.From = "", ""
		l.Lack(measure.Gap{Reason: measure.NotSet, Why: "requested by the planner, but this proxy does not know that the servers add", Do: "set --aggregate asked of psidecar proxy and up, with --handler add if they do, or with --act --allow-probe to test it"})
	case p.opts.Aggregate == nil:
		l.Setting, l.From = "", ""
		l.Lack(measure.Gap{Reason: measure.NotSet, Why: "not enabled", Do: "--aggregate host of psidecar proxy and up, with --handler add if servers add each push immediately, or with --act --allow-probe to test it"})
	case l.Setting == "":
		l.Lack(measure.Gap{Reason: measure.NotSet, Why: "not requested for this job", Do: "psidecar plan aggregate apply, or PSIDECAR_AGGREGATE=host"})
	case len(pushing) == 0:
		l.Lack(measure.Gap{Reason: noPushes, Why: fmt.Sprintf("no push of %d bytes of values or more, without a pull in the same request, has gone to another host through this proxy", p.opts.Aggregate.Least()), Do: "lower --aggregate-least if its pushes to one server are smaller"})
	default:
		setting, from := l.Setting, l.From
		l = p.line(job, measure.Aggregate, pushing, func(c *carried) *measure.Gap { return sumsGap(c.summed.why) })
		l.Setting, l.From = setting, from
	}
	l.Judge()
	return l
}

// sumsAsked returns what is asked for of a job, and who asks; empty: nothing is.
func (p *Proxy) sumsAsked(job string) (setting, from string) {
	name := ""
	for _, t := range p.opts.Titles.All(job) {
		// The first title has the name that rules may use.
		if name = cmp.Or(name, t.Name); t.Wishes.Aggregate != "" {
			return "aggregate " + t.Wishes.Aggregate, measure.Asked
		}
	}
	var texts []string
	for _, r := range p.sums.rulesOf(job, name) {
		texts = append(texts, r.String())
	}
	switch {
	case len(texts) > 0:
		return "aggregate " + strings.Join(texts[:min(len(texts), 4)], ", "), "planner"
	case p.opts.Aggregate == nil || p.opts.AggregateAsked:
		return "", "flags"
	case p.opts.Aggregate.Tries():
		return "--aggregate auto", "flags"
	}
	return "--aggregate host", "flags"
}

// sumsGap returns why pushes of a connection are not summed; nil: they are.
func sumsGap(why string) *measure.Gap {
	if why == "" {
		return nil
	}
	g := &measure.Gap{Reason: why, Why: why}
	if text, ok := sumsWhy[why]; ok {
		g.Why, g.Do = text[0], text[1]
	}
	return g
}

// sumsWhy has, for each reason of package aggregate, an explanation and what to do.
var sumsWhy = map[string][2]string{
	aggregate.Alone:     {"no other worker on this host pushes to that server through this proxy", "nothing; workers in separate pods are not summed"},
	aggregate.First:     {"the last push was the connection's first of most of its keys, which may carry initial values", "nothing; later pushes are summed"},
	aggregate.Kind:      {"the type of its values is unknown", "set --char-values if their type is CHAR or OTHER"},
	aggregate.Large:     {"pushes exceed 64 MiB or the available memory", "in the second case, increase --proxy-memory"},
	aggregate.NoRoom:    {"the memory for sums is exhausted", "increase --proxy-memory, an eighth of which is available per server"},
	aggregate.Resend:    {"the job uses PS_RESEND, and a retransmitted push could be added twice", "nothing; only jobs without PS_RESEND are summed"},
	aggregate.Sums:      {"the server answers pushes together, so it does not add them immediately", "nothing: sums do not suit such servers"},
	aggregate.Unheard:   {"no answer of the server to the worker has passed this proxy yet", "nothing if this is temporary; otherwise start the proxies before the job"},
	aggregate.Unknown:   {"the job's node table arrived before this proxy started, or bypassed it", "start the proxy before the job"},
	aggregate.Retired:   {"this proxy is shutting down", "nothing"},
	aggregate.Slower:    {"answers are faster if pushes are sent one by one", "nothing; --aggregate host always sums"},
	aggregate.Unscoped:  {"the worker's job and cgroup are unknown", "run psidecar agent --intercept next to the proxy"},
	aggregate.Unwanted:  {"disabled for these keys by the job's owner or the planner", "psidecar plan aggregate clear, if it was the planner"},
	aggregate.Rules:     {"a rule omits values of its pushes depending on each worker's pulls", "disable --slim and --threshold-activations for these keys"},
	aggregate.Handler:   {"it is not known that the servers add each push: the handler has not been tested yet, or does something else", "set --handler add if they do"},
	aggregate.Elsewhere: {"it moves keys", "nothing"},
}
