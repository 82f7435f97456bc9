package life

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
)

// restartAfter is how long a service that has ended stays away, as with a supervisor.
const restartAfter = 500 * time.Millisecond

// Kinds of services.
const (
	agent   = "agent"
	proxy   = "proxy"
	planner = "planner"
)

// A service is a process of psidecar's that is restarted when it ends, and is not to end unless
// it is told to.
type service struct {
	hoststest.Service
	uid  uint32
	args []string
	log  string // file
	// ended is told how a process ended that nobody had ended.
	ended func(*service, error)

	mu     sync.Mutex     // guards what follows
	expect *hosts.Process // it ends because it was told to
	dumped *hosts.Process // it ends by SIGQUIT, to say what its goroutines do
	said   int64          // bytes of the log before the present process
}

// startAgain starts the service, and again whenever it ends. A process that ends by itself is
// reported once until one of its successors has lasted for a while.
func (s *service) startAgain() error {
	failing := false
	s.Away, s.Command, s.Failed = restartAfter, s.command, func(err error) { s.ended(s, err) }
	s.Ended = func(p *hosts.Process, err error) {
		s.mu.Lock()
		expected, dumped := s.expect == p || s.Stopped(), s.dumped == p
		s.mu.Unlock()
		if dumped {
			return
		}
		// A planner whose disk is full ends again and again until there is room, and is
		// reported once.
		again := failing && time.Since(s.Begun()) < recovery // the same as before, as a rule
		failing = !expected || err != nil && !hoststest.Killed(err)
		if failing && !again {
			s.ended(s, err)
		}
	}
	return s.Run()
}

// command returns the next process, which appends to the log file.
func (s *service) command() (*exec.Cmd, error) {
	cmd := exec.Command(s.args[0], s.args[1:]...)
	if s.uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: s.uid, Gid: s.uid}}
	}
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	said, err := log.Stat()
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.said = said.Size()
	cmd.Stderr = log
	return cmd, nil
}

// stopService ends the present process by a signal and waits until it has ended, for at most
// patience. Another starts afterwards.
func (s *service) stopService(sig syscall.Signal, patience time.Duration) error {
	s.mayEnd()
	return s.End(sig, patience)
}

// mayDieWithin is how long a killed process may take to end. None of its code runs any more: if it
// takes longer, something that it left to the kernel holds it up.
const mayDieWithin = time.Minute

// killService ends the present process by SIGKILL and waits until it has ended. If that takes
// long, the journal's folder has the threads in uninterruptible sleep, and what they wait for.
func (s *service) killService(l *Life) error {
	const long = 5 * time.Second
	began, pid := time.Now(), s.Current().Pid()
	slow := time.AfterFunc(long, func() {
		l.journal.write(fmt.Sprintf("logs/slow-kill-%d.txt", pid), hoststest.Sleepers())
	})
	err := s.stopService(syscall.SIGKILL, mayDieWithin)
	if slow.Stop(); time.Since(began) > long {
		l.journal.say("%s took %.1f s to end once it was killed", s, time.Since(began).Seconds())
	}
	return err
}

// mayEnd says that the end of the present process is no failure, whoever ends it.
func (s *service) mayEnd() {
	p := s.Current()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expect = p
}

// dump makes the present process print its goroutines into its log, which ends it.
func (s *service) dump() *hosts.Process {
	p := s.Current()
	s.mu.Lock()
	s.expect, s.dumped = p, p
	s.mu.Unlock()
	p.Signal(syscall.SIGQUIT) // it may have ended
	return p
}

// stop ends the service in order, for good.
func (s *service) stop() error {
	_, err := s.Stop(time.Minute)
	return err
}

// lastWords returns what the present process has logged about why it ended: a panic, or its
// last lines.
func (s *service) lastWords() string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	s.mu.Lock()
	said := s.said
	s.mu.Unlock()
	text = text[min(said, int64(len(text))):]
	if i := graveIn(text); i >= 0 {
		return string(text[i:min(len(text), i+3000)])
	}
	return string(text[max(0, len(text)-1000):])
}

// lacksRoomForStore reports whether a planner with those last words could not make a store in
// place of one that was lost, because the disk is full. It must not begin with one that would
// not last, and begins when there is room.
func lacksRoomForStore(kind, words string) bool {
	return kind == planner && strings.Contains(words, "making the store") && strings.Contains(words, syscall.ENOSPC.Error())
}

// tail returns the last lines of the log.
func (s *service) tail(lines int) string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error() + "\n"
	}
	all := bytes.SplitAfter(text, []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines-1):], nil))
}

// grave returns what the log has that no process may print; empty if there is nothing.
func (s *service) grave() string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	if i := graveIn(text); i >= 0 {
		return string(text[i:min(len(text), i+3000)])
	}
	return ""
}

// graveIn returns where a log has something that no process may print, or a negative number.
func graveIn(text []byte) int {
	for _, sign := range []string{"panic:", "fatal error:", "SIGBUS", "SIGSEGV", "DATA RACE"} {
		if i := bytes.Index(text, []byte(sign)); i >= 0 {
			return i
		}
	}
	return -1
}

// status returns a number of kB of /proc/PID/status in bytes, 0 if the process is gone.
func (s *service) status(name string) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.Current().Pid()))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), name+":")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(fields[0])
	return n << 10
}
