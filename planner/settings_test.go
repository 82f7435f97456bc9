package planner

import (
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/planner/live"
)

// Errors name the flags as the command has them.
func TestSettingsNameTheirFlags(t *testing.T) {
	for want, change := range map[string]func(*Settings){
		"--planner-act requires --planner-store FILE":                    func(s *Settings) { s.Act = true },
		"--planner-strategy, --planner-horizon, --planner-decide-every:": func(s *Settings) { s.Live.Horizon = 0 },
		`--planner-tls-role "boss=x": `:                                  func(s *Settings) { s.Roles = []string{"boss=x"} },
		"--planner-tls-role needs --planner-tls-ca":                      func(s *Settings) { s.Roles = []string{"agent=x"} },
		"--planner-listen nowhere: ":                                     func(s *Settings) { s.Listen = "nowhere" },
		"set certificates (--planner-tls-ca, --planner-tls-cert":         func(s *Settings) { s.Listen = "0.0.0.0:0" },
		"--planner-http nowhere: ":                                       func(s *Settings) { s.HTTP = "nowhere" },
		"--planner-socket: ":                                             func(s *Settings) { s.Socket = "/dev/null/planner.sock" },
		"Run one planner with --planner-store FILE":                      func(s *Settings) { s.Store = "kubernetes:ads" },
		"--planner-store: ":                                              func(s *Settings) { s.Store = "/dev/null/plans.db" },
	} {
		t.Run(want, func(t *testing.T) {
			s := Settings{Listen: "127.0.0.1:0", Live: live.DefaultOptions}
			change(&s)
			var ports cli.Ports
			defer ports.Close()
			if _, err := s.OpenOptions(t.Context(), "--planner-", Options{}, &ports); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
}
