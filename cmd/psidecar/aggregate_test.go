package main

import (
	"io"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/logs"
)

// What cannot be summed is refused at the start, with what to do instead.
func TestAggregateRefused(t *testing.T) {
	for args, want := range map[string]string{
		"--aggregate rack":                  "want host, auto, asked or none",
		"--aggregate host":                  "--handler add",
		"--aggregate host --handler assign": "--handler add",
		"--aggregate auto":                  "--aggregate auto requires servers that add",
		"--aggregate host --handler assign --act --allow-probe --planner 127.0.0.1:1": "--handler add",
		"--aggregate host --handler add --codec none":                                 "requires --codec",
		"--aggregate-wait 1ms":                                      "requires --aggregate host, auto or asked",
		"--aggregate host --handler add --aggregate-wait -1s":       "cannot be negative",
		"--share-least 255":                                         "want 256 bytes or more",
		"--aggregate-least 1024":                                    "requires --aggregate host, auto or asked",
		"--aggregate host --handler add --aggregate-least 0":        "want 1 to 67108864 bytes",
		"--aggregate host --handler add --aggregate-least 67108865": "want 1 to 67108864 bytes",
		"--aggregate host --handler add --outlive":                  "cannot be combined with --outlive",
	} {
		t.Run(args, func(t *testing.T) {
			cmd := newProxyCommand(env{log: logs.New(io.Discard, 0)})
			cmd.SetArgs(strings.Fields(args))
			cmd.SilenceUsage, cmd.SilenceErrors = true, true
			if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		})
	}
}
