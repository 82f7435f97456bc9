package life

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// TestMain lets the test program be the task that takes processors.
func TestMain(m *testing.M) {
	hoststest.Main(m, map[string]func([]string) error{"spin": spin})
}

// A life in which nearly all kinds of events and jobs come (see TestTheUsualLife), as by `make
// life LIFE=2m SEED=1285`. Its jobs are cut short usualLate after its end, so that all of it
// takes three minutes.
const (
	usualLife = 2 * time.Minute
	usualLate = 15 * time.Second
	usualSeed = 1285
)

// TestLife lives for as long as PSIDECAR_LIFE says, else for usualLife, with the seed that
// PSIDECAR_LIFE_SEED says, else usualSeed. It ends at the first failure, or after as many as
// PSIDECAR_LIFE_FAILURES says. PSIDECAR_LIFE_WITHOUT has kinds of events that are left out,
// such as "cut a link;load", PSIDECAR_LIFE_ONLY those that are not. PSIDECAR_LIFE_UPGRADES=1
// adds upgrades of all hosts, and times without psidecar. PSIDECAR_LIFE_SUMS=1 has pushes
// summed.
func TestLife(t *testing.T) {
	c := Config{Seed: usualSeed}
	var err error
	if s := os.Getenv("PSIDECAR_LIFE"); s != "" {
		if c.For, err = time.ParseDuration(s); err != nil {
			t.Fatalf("PSIDECAR_LIFE=%q: want a duration", s)
		}
	} else {
		c.For, c.Late = usualLife, usualLate
	}
	if s := os.Getenv("PSIDECAR_LIFE_SEED"); s != "" {
		if c.Seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("PSIDECAR_LIFE_SEED=%q: want a number", s)
		}
	}
	if s := os.Getenv("PSIDECAR_LIFE_FAILURES"); s != "" {
		if c.Failures, err = strconv.Atoi(s); err != nil {
			t.Fatalf("PSIDECAR_LIFE_FAILURES=%q: want a number", s)
		}
	}
	c.Upgrades = os.Getenv("PSIDECAR_LIFE_UPGRADES") != ""
	c.Sums = os.Getenv("PSIDECAR_LIFE_SUMS") != ""
	if s := os.Getenv("PSIDECAR_LIFE_WITHOUT"); s != "" {
		c.Without = strings.Split(s, ";")
	}
	if s := os.Getenv("PSIDECAR_LIFE_ONLY"); s != "" {
		c.Only = strings.Split(s, ";")
	}
	for _, name := range os.Environ() { // else each process says that it does not know them
		if name, _, _ = strings.Cut(name, "="); strings.HasPrefix(name, "PSIDECAR_LIFE") {
			require.NoError(t, os.Unsetenv(name))
		}
	}
	Live(t, c)
}
