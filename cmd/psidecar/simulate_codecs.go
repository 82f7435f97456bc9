package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/client"
	"github.com/psidecar/psidecar/proxy/codec/advice"
)

// codecAdvice has the flags of simulate --codecs, which says what each codec for values would
// save of the traffic in a capture, or of what passes a proxy.
type codecAdvice struct {
	wanted  bool
	proxy   string
	seconds int
}

// register adds the flags.
func (c *codecAdvice) register(f *pflag.FlagSet) {
	f.BoolVar(&c.wanted, "codecs", false, "simulate codecs instead: their savings and residuals, on a packet capture (tcpdump -w), or live with --proxy")
	f.StringVar(&c.proxy, "proxy", "", "with --codecs: control socket of this host's proxy, to use its live traffic, such as "+usualControlSocket)
	f.IntVar(&c.seconds, "seconds", 10, "with --proxy: duration in seconds, 1 to 60")
}

// compareCodecs prints the report. With --proxy it blocks for --seconds, while the proxy tries the codecs.
func (c *codecAdvice) compareCodecs(ctx context.Context, e env, args []string, asJSON bool) error {
	var report advice.Report
	switch {
	case c.proxy != "" && len(args) > 0, c.proxy == "" && len(args) != 1:
		return cli.Usagef("--codecs: want either one capture or --proxy")
	case c.proxy != "" && (c.seconds < 1 || c.seconds > 60):
		return cli.Usagef("--seconds %d: want 1 to 60", c.seconds)
	case c.proxy != "":
		// The proxy answers when the trial is over, and a busy one later than that.
		ctx, cancel := context.WithTimeout(ctx, time.Duration(c.seconds)*time.Second+30*time.Second)
		defer cancel()
		query := url.Values{"seconds": {fmt.Sprint(c.seconds)}}
		if !filepath.IsAbs(strings.TrimPrefix(c.proxy, "unix:")) {
			return cli.Usagef("--proxy %q: want the path of the proxy's control socket on this host, such as %s; for all hosts use psidecar plan codecs try", c.proxy, usualControlSocket)
		}
		if err := client.Get(ctx, "unix:"+strings.TrimPrefix(c.proxy, "unix:"), "/api/v1/codecs/advice", query, &report); err != nil {
			return err
		}
	default:
		var err error
		if report, err = advice.ReadCapture(args[0]); err != nil {
			return err
		}
	}
	if asJSON {
		return json.NewEncoder(e.stdout).Encode(report)
	}
	if _, err := fmt.Fprint(e.stdout, client.TypesTried(report.CharValues, uint64(report.UntypedBytes))); err != nil {
		return err
	}
	return report.Print(e.stdout)
}
