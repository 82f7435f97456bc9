package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"
)

// Watch makes time pass for the loops until ctx ends, logs when loops get stuck, and notifies
// systemd's watchdog as long as none is, if the unit has WatchdogSec.
func (l *Loops) Watch(ctx context.Context) error {
	dog, err := openWatchdog()
	if err != nil {
		slog.Warn("cannot notify the systemd watchdog", "error", err)
	}
	defer dog.close()
	go l.Run(ctx)
	ticker := time.NewTicker(dog.every)
	defer ticker.Stop()
	// The log gets one line when something gets stuck, not one each second until it recovers.
	// The watchdog is not notified meanwhile, so that systemd restarts the service.
	for told := ""; ; {
		if err := l.Late(); err != nil {
			if told == "" {
				slog.Error("a loop of this process is stuck", "error", err)
			}
			told = err.Error()
		} else {
			told = ""
			dog.tell("WATCHDOG=1")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// watchdog is systemd's watchdog, which kills a service that stops notifying it.
type watchdog struct {
	conn  net.Conn // nil: there is none
	every time.Duration
}

// openWatchdog connects to the watchdog that the environment names (sd_notify(3)). It always
// returns a watchdog, which may do nothing. Notifications are three times as frequent as
// systemd requires.
func openWatchdog() (*watchdog, error) {
	w := &watchdog{every: time.Second}
	socket, micros := os.Getenv("NOTIFY_SOCKET"), os.Getenv("WATCHDOG_USEC")
	if socket == "" || micros == "" {
		return w, nil
	}
	if pid := os.Getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return w, nil // it is for another process
	}
	n, err := strconv.ParseInt(micros, 10, 64)
	if err != nil || n <= 0 {
		return w, fmt.Errorf("WATCHDOG_USEC=%s: want microseconds", micros)
	}
	conn, err := net.Dial("unixgram", socket) // a name that begins with @ is abstract in Go, too
	if err != nil {
		return w, fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	w.conn, w.every = conn, min(w.every, time.Duration(n)*time.Microsecond/3)
	return w, nil
}

// TellMainProcess tells systemd that a process that this one has started is the main process of
// its unit from now on. Without systemd it does nothing.
func TellMainProcess(pid int) error {
	socket := os.Getenv("NOTIFY_SOCKET")
	if socket == "" {
		return nil
	}
	conn, err := net.Dial("unixgram", socket)
	if err != nil {
		return fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	_, err = fmt.Fprintf(conn, "MAINPID=%d", pid)
	return errors.Join(err, conn.Close())
}

// tell sends a notification. A failure is logged and otherwise ignored: systemd will act on it.
func (w *watchdog) tell(state string) {
	if w.conn == nil {
		return
	}
	if _, err := w.conn.Write([]byte(state)); err != nil {
		slog.Warn("cannot notify the systemd watchdog", "error", err)
	}
}

// close ends the connection, if there is one.
func (w *watchdog) close() {
	if w.conn != nil {
		w.conn.Close()
	}
}
