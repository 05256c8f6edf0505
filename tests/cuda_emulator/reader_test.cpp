// Tests reading PTX: the contents of a module, and the texts that are refused, with their line.
#include "cuda_emulator/reader.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cuda_emulator/evaluate.hpp"

using namespace gatefold::cuda_emulator;

namespace {

const std::string head = ".version 8.7\n.target sm_80, debug\n.address_size 64\n";

std::string empty_kernel(const std::string& name, const std::string& parameters = "",
                         const std::string& directives = "", const std::string& body = "ret;") {
  return ".visible .entry " + name + "(" + parameters + ")\n" + directives + "{\n" + body + "\n}\n";
}

}  // namespace

TEST_CASE("module: finds its kernels only") {
  const auto module =
      read(head + empty_kernel("first") +
           ".func helper() { ret; }\n.extern .func (.param .b32 r) vprintf\n(\n.param .b64 a, .param .b64 b\n)\n;\n" +
           empty_kernel("second"));
  CHECK(module->kernels() == std::vector<std::string>{"first", "second"});
  CHECK(module->find("first") != nullptr);
  CHECK(module->find("first") == module->find("first"));
  CHECK(module->find("helper") == nullptr);
  CHECK(module->find("third") == nullptr);
}

TEST_CASE("parameters: are laid out with their alignment") {
  const auto module = read(head + empty_kernel("k",
                                               ".param .u8 a, .param .u64 .ptr .global .align 16 b,\n.param .f32 c, "
                                               ".param .align 8 .b8 d[12], .param .u16 e"));
  const Function& k = *module->find("k");
  REQUIRE(k.parameters.size() == 5);
  const std::size_t offsets[] = {0, 8, 16, 24, 36}, sizes[] = {1, 8, 4, 12, 2};
  for (int i = 0; i < 5; ++i) {
    CHECK(k.parameters[i].offset == offsets[i]);
    CHECK(k.parameters[i].size == sizes[i]);
  }
  CHECK(k.parameters_bytes == 38);
}

TEST_CASE("directives: set limits and static shared memory") {
  const auto module = read(head + ".extern .shared .align 128 .b8 dynamic[];\n.shared .align 8 .b8 common[24];\n" +
                           empty_kernel("k", "", ".maxntid 8, 4, 1\n.minnctapersm 2\n",
                                        ".reg .b32 %r<4>;\n.shared .align 4 .b8 a[10];\n.shared .align 16 .f64 b[2];\n"
                                        "mov.u32 %r1, common; mov.u32 %r2, dynamic; ret;") +
                           empty_kernel("other"));
  const Function& k = *module->find("k");
  CHECK(k.max_threads == 32);
  CHECK(k.shared_bytes == 56);  // three variables: 10 bytes at offset 0, 16 bytes at 16, and 24 bytes at 32
  CHECK(k.dynamic_shared == 128);
  CHECK(module->find("other")->max_threads == 1024);
  CHECK(module->find("other")->shared_bytes == 0);
}

TEST_CASE("variables: are placed and initialised") {
  const auto module = read(head +
                           ".global .align 4 .u32 numbers[4] = {1, 0x20, -3};\n"
                           ".const .align 8 .f64 pi = 0d400921FB54442D18;\n"
                           ".global .align 8 .u64 table[3] = {numbers, generic(numbers)+8, 0};\n"
                           ".visible .global .align 1 .b8 bytes[2][2] = {{1, 2}, {3, 4}};\n"
                           ".global .align 4 .f32 half = 0f3F000000;\n.global .b8 raw[3];\n");
  auto at = [&](const char* name) { return module->variables.at(name); };
  CHECK(at("numbers").size == 16);
  const auto* numbers = reinterpret_cast<const std::int32_t*>(at("numbers").address);
  CHECK(numbers[0] == 1);
  CHECK(numbers[1] == 32);
  CHECK(numbers[2] == -3);
  CHECK(numbers[3] == 0);
  CHECK(*reinterpret_cast<const double*>(at("pi").address) == 3.141592653589793);
  const auto* table = reinterpret_cast<const std::uint64_t*>(at("table").address);
  CHECK(table[0] == at("numbers").address);
  CHECK(table[1] == at("numbers").address + 8);
  CHECK(std::memcmp(reinterpret_cast<const char*>(at("bytes").address), "\1\2\3\4", 4) == 0);
  CHECK(*reinterpret_cast<const float*>(at("half").address) == 0.5f);
  CHECK(at("raw").size == 3);
  CHECK(Memory::device().contains(numbers, 16));
}

TEST_CASE("variables: are device memory while the module lives") {
  const void* address = nullptr;
  {
    const auto module = read(head + ".global .u32 x;\n");
    address = reinterpret_cast<const void*>(module->variables.at("x").address);
    CHECK(Memory::device().contains(address, 4));
  }
  CHECK(!Memory::device().contains(address, 4));
}

TEST_CASE("reader: ignores comments, pragmas, sections and debugging directives") {
  const auto module = read(head + "/* a\n comment */ // another } one {\n" +
                           empty_kernel("k", "", "", ".pragma \"nounroll\";\n// demoted variable {\nret; /* } */") +
                           ".file 1 \"/a/b/kernel.cu\", 12, 34\n.section .debug_str\n{\n$L: .b8 95\n}\n");
  CHECK(module->find("k") != nullptr);
  CHECK(module->files.at(1) == "kernel.cu");
}

TEST_CASE("faults: name source line and inline location of an instruction") {
  const std::string text =
      head +
      ".visible .entry k(.param .u64 p, .param .u64 q)\n{\n.reg .b32 %r<3>;\n.loc 1 12 3\nmov.u32 %r1, 0;\n"
      ".loc 2 40 7, function_name $L__info_string0, inlined_at 1 13 5\nmov.u32 %r1, 0;\n"
      ".loc 3 50 1, function_name $L__info_string0+8, inlined_at 2 40 7\ntrap;\n}\n"
      ".file 1 \"/x/kernel.cu\"\n.file 2 \"/x/row.hpp\"\n.file 3 \"/x/math.hpp\"\n";
  const std::string fault = fault_of([&] { run_module(text, nullptr); });
  CHECK(fault == "trap: trap at math.hpp:50, inlined at kernel.cu:13 in kernel k, block (0,0,0), thread (0,0,0)");
}

TEST_CASE("reader: malformed or unknown input faults with its line") {
  auto message = [](const std::string& text) { return fault_of([&] { read(head + text)->find("k"); }); };
  CHECK(message(".texref t;") == "PTX line 4: expected a directive that the emulator knows, got '.texref'");
  CHECK(message("\n.global .q32 x;") == "PTX line 5: expected a type, got '.q32'");
  CHECK(message(".global .u32 x = y;") == "PTX line 4: expected a number or the name of a variable, got 'y'");
  CHECK(message(".global .u32 x[1] = {1, 2};") == "PTX line 4: expected the end of the initialiser, got '2'");
  CHECK(mentions(message(".extern .global .u32 x;"), "expected a definition of 'x', which is only declared"));
  CHECK(message(".visible .entry k()\n{\nret;") == "PTX line 6: expected '}', got the end of the text");
  CHECK(message(empty_kernel("k", "", "", ".tex x;")) ==
        "PTX line 6: expected a directive that the emulator knows, got '.tex'");
  CHECK(message(empty_kernel("k", "", "", "@%p1 ret;")) == "PTX line 6: expected a predicate, got '%p1'");
  CHECK(message(empty_kernel("k", "", "", "bra $nowhere;")) == "PTX: no label '$nowhere' in k");
}

TEST_CASE("unknown instruction: faults only if it is executed") {
  const std::string skipped = kernel_text("mov.u64 %d9, 1; bra END; frob.b32 %r1, %r2; END: st.global.u64 [%d0], %d9;");
  DeviceArray<std::uint64_t> out(1);
  run_module(skipped, out.data);
  CHECK(out[0] == 1);
}

TEST_CASE("labels: are local to their block") {
  const std::string count =
      "{\n.reg .pred done;\nAGAIN: add.u32 %r1, %r1, 1; setp.ge.u32 done, %r1, LIMIT; @done bra END; bra AGAIN;\nEND:\n"
      "@%p2 bra OUT;\n}\n";
  const auto up_to = [&](const std::string& limit) {
    std::string text = count;
    return text.replace(text.find("LIMIT"), 5, limit);
  };
  const auto got =
      each_thread("mov.u32 %r1, 0; setp.ne.u32 %p2, 0, 0;\n" + up_to("3") + "mov.u32 %r2, %r1;\n" + up_to("10") +
                  "setp.eq.u32 %p2, 0, 0;\n" + up_to("20") + "mov.u32 %r1, 99;\nOUT: mov.b64 %d9, {%r1, %r2};");
  CHECK(got[0] == (std::uint64_t{3} << 32 | 20));
}

TEST_CASE("invalid instruction: the fault gives the reason") {
  struct Case {
    const char *instruction, *reason;
  };
  const Case cases[] = {
      {"frob.b32 %r1, %r2;", "an instruction that the emulator does not know"},
      {"add.frob.u32 %r1, %r2, %r3;", "a modifier that the emulator does not know"},
      {"add.u8 %r1, %r2, %r3;", "a type or modifier that the emulator does not know for it"},
      {"add.u64 %r1, %r2, %r3;", "a register of another width than the emulator expects"},
      {"add.u32 %r1, %r2;", "fewer operands than the emulator expects"},
      {"add.u32 %r1, %r2, %r3, %r4;", "operands that the emulator does not know"},
      {"add.u32 %r1, %r2, %r777;", "a register that the emulator does not know"},
      {"mov.u32 %r1, %envreg3;", "a register that the emulator does not know"},
      {"mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%d1}, {%d2}, {%d3}, {%d4};",
       "matrices of a shape or type that the emulator does not know"},
      {"ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r1, %r2}, [%r3];",
       "matrices of a shape or type that the emulator does not know"},
      {"ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1}, [%r3];", "a vector that the emulator does not know"},
      {"tcgen05.wait::ld.sync.aligned;", "tensor cores are not modelled"},
      {"wgmma.mma_async.sync.aligned.m64n12k16.f32.bf16.bf16 {%r1}, %d1, %d2, 1, 1, 1, 0, 0;",
       "matrices of a shape or type that the emulator does not know"},
      {"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r1, %r2, %r3, %r4}, {%r5, %r6, %r7, %r8}, %d2, 1, 1, 1, "
       "0;",
       "wgmma with A in registers is not modelled"},
      {"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%r1, %r2, %r3, %r4}, %d1, %d2, 1, 1, 2, 0, 0;",
       "an immediate that wgmma does not have"},
      {"setmaxnreg.inc.sync.aligned.u32 20;", "setmaxnreg is for 24 to 256 registers, a multiple of 8"},
      {"setmaxnreg.dec.sync.aligned.u32 100;", "setmaxnreg is for 24 to 256 registers, a multiple of 8"},
      {"tex.1d.v4.f32.s32 {%r1, %r2, %r3, %r4}, [t, {%r5}];", "textures and surfaces are not modelled"},
      {"mapa.u64 %d1, %d2, %r1;", "clusters are not modelled"},
      {"barrier.cluster.arrive;", "clusters are not modelled"},
      {"bar.arrive 1;", "fewer operands than the emulator expects"},
      {"shfl.up.b32 %r1, %r2, %r3, %r4;", "collectives without .sync are not modelled"},
      {"atom.global.add.noftz.f16x2 %r1, [%d0], %r2;", "an atomic operation that the emulator does not know"},
      {"call (%r1), %d1, (%r2), p;", "an argument that the emulator does not know"},
  };
  for (const Case& c : cases) {
    CAPTURE(c.instruction);
    const std::string fault = fault_of([&] { run_body(c.instruction, nullptr); });
    CHECK(mentions(fault, std::string("refused: ") + c.reason + ": "));
    CHECK(mentions(fault, " at PTX line 10 in kernel k, block (0,0,0), thread (0,0,0)"));
  }
}

TEST_CASE("architecture-specific instruction: faults in generic PTX") {
  for (const std::string instruction : {"wgmma.fence.sync.aligned;", "setmaxnreg.inc.sync.aligned.u32 240;"}) {
    CAPTURE(instruction);
    std::string text = kernel_text(instruction);
    const std::size_t target = text.find("sm_90a");
    CHECK(fault_of([&] { run_module(text, nullptr, nullptr, {{}, {128}}); }) == "");
    text.replace(target, 6, "sm_90");
    CHECK(mentions(fault_of([&] {
                     run_module(text, nullptr, nullptr, {{}, {128}});
                   }),
                   "refused: an instruction for sm_90a alone: compile for compute_90a: "));
  }
}
