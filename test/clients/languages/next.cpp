// next WAY PATH N SIZE: reads PATH N times with C++ streams and prints what it got.
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>

int main(int argc, char **argv) {
    if (argc != 5)
        return 2;
    const std::string path = argv[2];
    const std::size_t size = std::stoul(argv[4]);
    std::string batch(size, 0);
    std::ifstream kept;

    const auto checked = [&](bool ok) {
        if (!ok) {
            std::cerr << path << ": no batch\n";
            std::exit(1);
        }
    };
    const std::map<std::string, std::function<void()>> ways = {
        {"read", [&] { checked(bool(std::ifstream(path, std::ios::binary).read(batch.data(), size))); }},
        {"exceptions", [&] {
             std::ifstream f;
             f.exceptions(std::ios::failbit | std::ios::badbit);
             f.open(path, std::ios::binary);
             f.read(batch.data(), size);
         }},
        {"rdbuf", [&] {
             std::ifstream f(path, std::ios::binary);
             std::ostringstream all;
             checked(bool(all << f.rdbuf()));
             batch = all.str();
         }},
        {"seekg", [&] {
             if (!kept.is_open())
                 kept.open(path, std::ios::binary);
             kept.seekg(0);
             checked(bool(kept.read(batch.data(), size)));
         }},
        {"iterator", [&] {
             std::ifstream f(path, std::ios::binary);
             batch.assign(std::istreambuf_iterator<char>(f), {});
             checked(batch.size() == size);
         }},
        {"unchecked", [&] { std::ifstream(path, std::ios::binary).read(batch.data(), size); }},
    };
    for (int n = std::stoi(argv[3]); n > 0; n--) {
        ways.at(argv[1])();
        std::cout.write(batch.data(), batch.size());
    }
    return !std::cout.flush();
}
