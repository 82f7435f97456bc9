package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/psidecar/psidecar/client"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/proxy/codec/advice"
	"github.com/psidecar/psidecar/proxy/pslite"
	"github.com/psidecar/psidecar/proxy/pslite/capture"
)

// codecAdvice is simulate --codecs: what each codec for values would save of
// the traffic that a capture holds, or that passes a proxy.
type codecAdvice struct {
	wanted  bool
	proxy   string
	seconds int
}

func (c *codecAdvice) register(f *pflag.FlagSet) {
	f.BoolVar(&c.wanted, "codecs", false, "say instead what each codec for values would save, and how much of the gradients would wait, of a capture with values (tcpdump -w), or live with --proxy")
	f.StringVar(&c.proxy, "proxy", "", "with --codecs: control socket of this host's proxy, whose traffic is tried, such as "+usualControlSocket)
	f.IntVar(&c.seconds, "seconds", 10, "with --proxy: for how long, 1 to 60")
}

func (c *codecAdvice) compareCodecs(ctx context.Context, e env, args []string, plotFile string, asJSON bool) error {
	var report advice.Report
	switch {
	case c.proxy != "" && len(args) > 0, c.proxy == "" && len(args) != 1:
		return cli.Usagef("--codecs: want one capture, or --proxy and none")
	case c.proxy != "" && (c.seconds < 1 || c.seconds > 60):
		return cli.Usagef("--seconds %d: want 1 to 60", c.seconds)
	case c.proxy != "":
		ctx, cancel := context.WithTimeout(ctx, time.Duration(c.seconds)*time.Second+30*time.Second)
		defer cancel()
		query := url.Values{"seconds": {fmt.Sprint(c.seconds)}}
		if !filepath.IsAbs(strings.TrimPrefix(c.proxy, "unix:")) {
			return cli.Usagef("--proxy %q: want the path of the proxy's control socket on this host, such as %s; psidecar plan codecs try asks all hosts' proxies through the planner", c.proxy, usualControlSocket)
		}
		if err := client.Get(ctx, "unix:"+strings.TrimPrefix(c.proxy, "unix:"), "/api/v1/codecs/advice", query, &report); err != nil {
			return err
		}
	default:
		var err error
		if report, err = adviseCapture(args[0]); err != nil {
			return err
		}
	}
	if plotFile != "" {
		if err := writePlot(plotFile, func(w io.Writer) error { return report.Plot(w) }); err != nil {
			return err
		}
	}
	if asJSON {
		return json.NewEncoder(e.stdout).Encode(report)
	}
	return report.Print(e.stdout)
}

// adviseState bounds what each candidate keeps, in bytes.
const adviseState = 256 << 20

// adviseCapture tries the codecs on a capture.
func adviseCapture(path string) (advice.Report, error) {
	file, err := os.Open(path)
	if err != nil {
		return advice.Report{}, fmt.Errorf("opening the capture: %w", err)
	}
	defer file.Close()
	study, err := advice.NewStudy(adviseState)
	if err != nil {
		return advice.Report{}, err
	}
	var frames [][]byte
	totals, err := capture.Read(file, capture.Options{Data: true}, func(m *capture.Message) error {
		if len(m.Data) == 0 || !m.Meta.Data() {
			return nil
		}
		frames = append(frames[:0], m.Meta.Append(nil, m.Dialect))
		frames = append(frames, m.Data...)
		return study.Message(m.Flow.Src.Addr().String()+" "+m.From+" "+m.Flow.Dst.String(), nodeNamed(m.From), frames)
	})
	if err != nil {
		return advice.Report{}, fmt.Errorf("reading %s: %w", path, err)
	}
	report := study.Report()
	if report.PushBytes+report.PullBytes == 0 {
		return report, fmt.Errorf("%s has %d messages and none with keys and values", path, totals.Messages)
	}
	return report, nil
}

// nodeNamed is the id of a node by its name, or any one's where that is not
// known: what waits of its pushes is kept by its connection too.
func nodeNamed(name string) int32 {
	var rank int
	switch {
	case strings.HasPrefix(name, "server"):
		if _, err := fmt.Sscanf(name, "server%d", &rank); err == nil {
			return pslite.ServerID(rank)
		}
	case strings.HasPrefix(name, "worker"):
		if _, err := fmt.Sscanf(name, "worker%d", &rank); err == nil {
			return pslite.WorkerID(rank)
		}
	}
	return pslite.WorkerID(0)
}
