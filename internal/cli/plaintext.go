package cli

import (
	"io"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Names of hosts and jobs, arguments of processes and messages of servers are
// whatever others say: with control characters they could clear the screen, hide a
// line, or have the terminal type something. They are spelt out, as JSON spells them,
// so that JSON stays JSON. The command line puts a [Writer] around its standard output
// and standard error; where it works the terminal itself, the text that it shows goes
// through [Clean].

// Clean returns text with the characters spelt out that are not to be shown as
// they are, line breaks and tabs among them: it stays in its line.
func Clean(text string) string {
	if !strings.ContainsFunc(text, func(r rune) bool { return r == utf8.RuneError || unsafeIn(r, false) }) {
		return text
	}
	return string(appendClean(nil, []byte(text), false))
}

// A Writer writes text of several lines to a terminal. It is safe for use by
// several goroutines.
type Writer struct {
	w io.Writer

	mu   sync.Mutex // guards rest, and is held while w is written to
	rest []byte     // the beginning of a character that is to be written
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write implements [io.Writer]. The beginning of a character waits for its end.
func (w *Writer) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := b
	if len(w.rest) > 0 {
		text = append(w.rest, b...)
	}
	whole := len(text)
	for back := 1; back < utf8.UTFMax && back <= len(text); back++ {
		if at := len(text) - back; utf8.RuneStart(text[at]) {
			if !utf8.FullRune(text[at:]) {
				whole = at
			}
			break
		}
	}
	rest := append([]byte(nil), text[whole:]...)
	if _, err := w.w.Write(cleaned(text[:whole])); err != nil {
		return 0, err
	}
	w.rest = rest
	return len(b), nil
}

// cleaned returns text of several lines with unsafe characters spelt out.
func cleaned(text []byte) []byte {
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && n == 1 || unsafeIn(r, true) {
			return appendClean(make([]byte, 0, len(text)+64), text, true)
		}
		i += n
	}
	return text
}

// appendClean appends text with unsafe characters spelt out. Invalid UTF-8 becomes
// the replacement character: terminals that are not of UTF-8 take single bytes for
// control characters.
func appendClean(dst, text []byte, lines bool) []byte {
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && n == 1:
			dst = append(dst, `\ufffd`...)
		case unsafeIn(r, lines):
			dst = appendSpelt(dst, r)
		default:
			dst = append(dst, text[:n]...)
		}
		text = text[n:]
	}
	return dst
}

const hex = "0123456789abcdef"

// appendSpelt appends a character as JSON spells it, by UTF-16.
func appendSpelt(dst []byte, r rune) []byte {
	units := []rune{r}
	if r > 0xffff {
		units = []rune{0xd800 + (r-0x10000)>>10, 0xdc00 + (r-0x10000)&0x3ff}
	}
	for _, u := range units {
		dst = append(dst, '\\', 'u', hex[u>>12&15], hex[u>>8&15], hex[u>>4&15], hex[u&15])
	}
	return dst
}

// unsafeIn reports whether a character does something other than to be seen:
// control characters, and those that change the order of others or are nothing
// to be seen. Where text has lines, their breaks and tabs are fine.
func unsafeIn(r rune, lines bool) bool {
	if r < utf8.RuneSelf {
		return r == 0x7f || r < ' ' && !(lines && (r == '\n' || r == '\t'))
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
}
