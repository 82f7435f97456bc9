package main

import (
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/proxy/aggregate"
)

// Values of --aggregate.
const (
	aggregateNone  = "none"
	aggregateHost  = "host"
	aggregateAsked = "asked"
)

// aggregates puts what --aggregate asks for into o.
func (f *proxyFlags) aggregates(o *proxy.Options) (err error) {
	switch {
	case f.aggregate == aggregateNone && f.aggregateWait != 0:
		return cli.Usagef("--aggregate-wait is of use with --aggregate host or asked only")
	case f.aggregate == aggregateNone:
		return nil
	case f.aggregate != aggregateHost && f.aggregate != aggregateAsked:
		return cli.Usagef("--aggregate %q: want host, asked or none", f.aggregate)
	case f.aggregateWait < 0:
		return cli.Usagef("--aggregate-wait cannot be negative")
	case f.routing.handler != "add":
		return cli.Usagef("--aggregate host is for servers that add up what they get, at once: say so with --handler add, or leave it out where they do anything else (FTRL, AdaGrad, Adam: a sum is not the same to them as its parts; MXNet's synchronous servers: they count pushes)")
	case f.routing.wanted():
		return cli.Usagef("--aggregate host does not go with --act or --placement: requests that proxies split are not summed; leave one of them out")
	case f.outlive:
		return cli.Usagef("--aggregate host does not go with --outlive: what is read of a connection that is held must have been written; leave one of them out")
	case len(o.Codecs) == 0:
		return cli.Usagef("--aggregate host needs --codec compact or auto: without a codec nobody knows where a message begins")
	}
	o.AggregateAsked = f.aggregate == aggregateAsked
	o.Aggregate, err = aggregate.New(aggregate.Options{Wait: f.aggregateWait, Chars: f.values.rule.Elements, Bytes: int(min(f.memory/8, 1<<30))})
	return err
}
