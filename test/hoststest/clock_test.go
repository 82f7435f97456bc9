package hoststest_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// tellTime prints the time of day, and how long it runs, for each line that it
// reads, while other threads ask for the time all the while.
func tellTime([]string) error {
	began := time.Now()
	for range 3 {
		go func() {
			for {
				time.Sleep(time.Microsecond)
				_ = time.Now()
			}
		}()
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(time.Now().Unix(), int64(time.Since(began)/time.Second))
	}
	return nil
}

func TestMain(m *testing.M) {
	hoststest.Main(m, map[string]func([]string) error{"clock": tellTime})
}

// A process's clock is set forth and back; the spans that it measures stay right.
func TestSetClockLeavesSpansRight(t *testing.T) {
	n := hoststest.New(t, hosts.Config{Hosts: 1})
	c := hoststest.Start(t, n.Host(0), "job", hoststest.Task("clock"))
	began := time.Now()
	for _, ahead := range []time.Duration{0, 48 * time.Hour, -3 * time.Hour, 0} {
		if err := hoststest.SetClock(c.Process, ahead); errors.Is(err, hoststest.ErrClock) {
			require.Missing(t, "%v", err)
		} else if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(c.Ask("now"))
		now := require.Value(strconv.ParseInt(fields[0], 10, 64))(t)
		span := require.Value(strconv.ParseInt(fields[1], 10, 64))(t)
		least := began.Add(ahead).Unix()
		if most := time.Now().Add(ahead).Unix(); now < least || now > most {
			t.Errorf("set %v ahead it is %d, want %d to %d", ahead, now, least, most)
		}
		if most := int64(time.Since(began)/time.Second) + 1; span < 0 || span > most {
			t.Errorf("set %v ahead it has run for %d s, want at most %d", ahead, span, most)
		}
	}
}
