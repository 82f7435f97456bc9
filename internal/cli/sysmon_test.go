package cli

import "testing"

func TestWithWakefulSysmon(t *testing.T) {
	for _, c := range []struct {
		godebug, want string
		ok            bool
	}{
		{"", wakefulSysmon, true},
		{"gctrace=1,netdns=go", "gctrace=1,netdns=go," + wakefulSysmon, true},
		{"netdns=go,schedtrace=0", "netdns=go,schedtrace=0", false},
		{wakefulSysmon, wakefulSysmon, false},
	} {
		if got, ok := withWakefulSysmon(c.godebug); got != c.want || ok != c.ok {
			t.Errorf("%q: %q, %v, want %q, %v", c.godebug, got, ok, c.want, c.ok)
		}
	}
}
