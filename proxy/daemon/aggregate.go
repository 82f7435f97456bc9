package daemon

import (
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/proxy/aggregate"
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
		return cli.Usagef("--aggregate-wait is of use with --aggregate host, auto or asked only")
	case f.Aggregate == AggregateNone:
		return nil
	case f.Aggregate != AggregateHost && f.Aggregate != AggregateAuto && f.Aggregate != AggregateAsked:
		return cli.Usagef("--aggregate %q: want host, auto, asked or none", f.Aggregate)
	case f.AggregateWait < 0:
		return cli.Usagef("--aggregate-wait cannot be negative")
	// Whether servers add cannot be seen from outside. Summing for others would change the
	// model silently, so it has to be said.
	case f.Routing.Handler != "add":
		return cli.Usagef("--aggregate %s is for servers that add up what they get, at once: say so with --handler add, or leave it out where they do anything else (FTRL, AdaGrad, Adam: a sum is not the same to them as its parts; MXNet's synchronous servers: they count pushes)", f.Aggregate)
	case f.Routing.Wanted():
		return cli.Usagef("--aggregate %s does not go with --act or --placement: requests that proxies split are not summed; leave one of them out", f.Aggregate)
	// A kept connection's window may be read only as far as everything is written, and a sum
	// holds messages back.
	case f.Outlive:
		return cli.Usagef("--aggregate %s does not go with --outlive: what is read of a connection that is held must have been written; leave one of them out", f.Aggregate)
	case len(o.Codecs) == 0:
		return cli.Usagef("--aggregate %s needs --codec compact or auto: without a codec nobody knows where a message begins", f.Aggregate)
	}
	o.AggregateAsked = f.Aggregate == AggregateAsked
	o.Aggregate, err = aggregate.New(aggregate.Options{Wait: f.AggregateWait, Try: f.Aggregate == AggregateAuto, Chars: f.Values.Rule.Elements, Bytes: int(min(f.Memory/8, 1<<30))})
	return err
}
