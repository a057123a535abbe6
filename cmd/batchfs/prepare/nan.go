package prepare

import "bytes"

// replaceNaN replaces NaN, Infinity and -Infinity, which Python's json writes, with null, because
// they are not JSON.
func replaceNaN(line []byte) []byte {
	if !bytes.Contains(line, []byte("NaN")) && !bytes.Contains(line, []byte("Infinity")) {
		return line
	}
	var replaced []byte
	copied := 0 // length of the part of line that is in replaced
	for i := 0; i < len(line); i++ {
		switch line[i] {
		case '"':
			for i++; i < len(line) && line[i] != '"'; i++ {
				if line[i] == '\\' {
					i++
				}
			}
		case 'N', 'I':
			for _, name := range []string{"NaN", "Infinity"} {
				before := line[:i]
				if name == "Infinity" {
					before = bytes.TrimSuffix(before, []byte("-"))
				}
				rest, ok := bytes.CutPrefix(line[i:], []byte(name))
				if ok && endsWithAny(before, ":,[ \t") && (len(rest) == 0 || bytes.IndexByte([]byte(",]} \t\r\n"), rest[0]) >= 0) {
					replaced = append(append(replaced, line[copied:len(before)]...), "null"...)
					copied = i + len(name)
				}
			}
		}
	}
	return append(replaced, line[copied:]...)
}

func endsWithAny(text []byte, bytesBefore string) bool {
	return len(text) > 0 && bytes.IndexByte([]byte(bytesBefore), text[len(text)-1]) >= 0
}
