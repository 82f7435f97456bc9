package daemon

import (
	"path/filepath"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/proxy/aggregate"
	"github.com/psidecar/psidecar/proxy/payoff"
)

// Values of --aggregate: never, for every job, where it is not slower, and only where a job's
// owner or the planner asks.
const (
	AggregateNone  = "none"
	AggregateHost  = "host"
	AggregateAuto  = "auto"
	AggregateAsked = "asked"
)

// aggregates sets what --aggregate asks for in o, or returns why that does not go with the
// other settings.
func (f *Settings) aggregates(o *proxy.Options) (err error) {
	switch {
	case f.Aggregate == AggregateNone && f.AggregateWait != 0:
		return cli.Usagef("--aggregate-wait requires --aggregate host, auto or asked")
	case f.Aggregate == AggregateNone && f.AggregateLeast != aggregate.Least:
		return cli.Usagef("--aggregate-least requires --aggregate host, auto or asked")
	case f.Aggregate == AggregateNone:
		return nil
	case f.Aggregate != AggregateHost && f.Aggregate != AggregateAuto && f.Aggregate != AggregateAsked:
		return cli.Usagef("--aggregate %q: want host, auto, asked or none", f.Aggregate)
	case f.AggregateWait < 0:
		return cli.Usagef("--aggregate-wait cannot be negative")
	case f.AggregateLeast < 1 || f.AggregateLeast > aggregate.Most:
		return cli.Usagef("--aggregate-least %d: want 1 to %d bytes", f.AggregateLeast, aggregate.Most)
	// Whether servers add cannot be seen from outside. Summing for others would change the
	// model silently, so it has to be said.
	case f.Routing.Handler != "add" && (f.Routing.Handler != "" || !f.Routing.Probe):
		return cli.Usagef("--aggregate %s requires servers that add each push immediately: set --handler add if yours do, or --act --allow-probe to detect it; otherwise omit it (for FTRL, AdaGrad and Adam a sum is not equivalent to its parts; MXNet's synchronous servers count pushes)", f.Aggregate)
	// A kept connection's window may be read only as far as everything is written, and a sum
	// holds messages back.
	case f.Outlive:
		return cli.Usagef("--aggregate %s cannot be combined with --outlive: a held connection cannot delay messages; omit one of them", f.Aggregate)
	case len(o.Codecs) == 0:
		return cli.Usagef("--aggregate %s requires --codec compact or auto: message boundaries are unknown without a codec", f.Aggregate)
	}
	o.AggregateAsked, o.AggregateProbed = f.Aggregate == AggregateAsked, f.Routing.Handler == ""
	var trials *payoff.Trials
	if f.Aggregate == AggregateAuto {
		trials = o.Trials
	}
	o.Aggregate, err = aggregate.New(aggregate.Options{
		Wait: f.AggregateWait, Least: f.AggregateLeast, Trials: trials, Chars: f.Values.Rule.Elements, Bytes: int(min(f.Memory/8, 1<<30)),
		File: filepath.Join(f.Routing.Dir, "aggregate.json"),
	})
	return err
}
